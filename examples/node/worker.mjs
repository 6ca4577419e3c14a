// A worker in Node. Its model knows only which letter follows which. It drafts the most likely letters, and Croupier verifies
// them. examples/README.md says how to run it.
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const PROSE = "the dealer deals the cards and the cards are the dealer s and the player plays the cards the dealer deals ";
const LETTERS = " acdehlnprsty";
const DRAFTS = 3;

// With `longs: String`, ids and seeds of 64 bits stay exact. With `defaults: true`, what is 0, false or empty in a reply is there; without,
// token 0 and seed 0 would be undefined.
const schema = loadSync("croupier/v1/sampler.proto", {
  includeDirs: [fileURLToPath(new URL("../../proto", import.meta.url))],
  keepCase: true,
  longs: String,
  enums: String,
  oneofs: true,
  defaults: true,
});
const pb = grpc.loadPackageDefinition(schema).croupier.v1;

// The status codes after which a new stream may succeed. A reply that is too long also gives RESOURCE_EXHAUSTED, but no reply here is.
const PASSING = [grpc.status.UNAVAILABLE, grpc.status.ABORTED, grpc.status.RESOURCE_EXHAUSTED];

// The worker's state of a sequence: enough to open it again. Its first token is the prompt.
class Text {
  constructor(id, params) {
    // A misspelled name would be dropped before it reaches the server, so it is looked for here.
    const names = pb.SamplingParams.type.field.map((field) => field.name);
    const unknown = Object.keys(params).filter((name) => !names.includes(name));
    if (unknown.length > 0) throw new Error(`no sampling parameters: ${unknown}`);
    this.id = id;
    this.params = params;
    this.tokens = [0];
    this.finishReason = "FINISH_REASON_UNSPECIFIED";
  }

  get ended() {
    return this.finishReason !== "FINISH_REASON_UNSPECIFIED";
  }
}

// Returns the logits of the letter after `last`, and the most likely letter.
function model(last) {
  const counts = Array.from(LETTERS, (letter) => PROSE.split(LETTERS[last] + letter).length - 1);
  const row = Float32Array.from(counts, (count) => Math.log(count + 1e-3));
  return { row, likeliest: counts.indexOf(Math.max(...counts)) };
}

// The bytes of an array of numbers. The array itself would be sent as one byte for each number, without an error.
function bytes(array) {
  return Buffer.from(array.buffer, array.byteOffset, array.byteLength);
}

// A stream. The n-th reply answers the n-th request.
class Stream {
  constructor(client) {
    // Waits until it is connected. It has no deadline: that would end the stream.
    this.call = client.Decode(new grpc.Metadata({ waitForReady: true }));
    // The iterator throws an error, too. Without a listener it would also end the program.
    this.call.on("error", () => {});
    this.replies = this.call[Symbol.asyncIterator]();
  }

  // Sends a message and returns the answer. If the server has no room for the step, it waits and sends the message again.
  async ask(request) {
    for (;;) {
      this.call.write(request); // If this fails, the iterator throws the reason.
      const { value: reply, done } = await this.replies.next();
      if (done) throw new Error("the server ended the stream without an answer");
      if (!reply.step?.refusal) return reply;
      await sleep(reply.step.refusal.retry_after_ms);
    }
  }

  // Ends the stream, and waits until the server has answered everything and ended it as well.
  async end() {
    this.call.end();
    while (!(await this.replies.next()).done);
  }
}

// The work of a text in a step: to verify the letters that are likeliest to follow, with the rows for it.
function verification(text) {
  const rows = [];
  const draft = [];
  let last = text.tokens.at(-1);
  while (rows.length <= DRAFTS) { // There is also a row after the last draft token.
    const { row, likeliest } = model(last);
    rows.push(bytes(row));
    draft.push(likeliest);
    last = likeliest;
  }
  const verify = { draft_token_ids: draft.slice(0, DRAFTS), deterministic: {} };
  return { rows, work: { sequence_id: text.id, verify } };
}

// Opens the unfinished texts on a new stream, and decodes until all of them have ended.
async function decode(client, texts) {
  const stream = new Stream(client);
  try {
    const config = { vocab_size: LETTERS.length, logits_dtype: "LOGITS_DTYPE_F32", default_params: { max_tokens: 200 } };
    await stream.ask({ config });
    let going = texts.filter((text) => !text.ended);
    let open = going.map(({ id, params, tokens }) => {
      return { sequence_id: id, params, prompt_token_ids: tokens.slice(0, 1), output_token_ids: tokens.slice(1) };
    });
    let close = [];
    while (going.length > 0) {
      const asked = going.map(verification);
      await sleep(50); // Simulates the model's time. A model that blocked the event loop for long would lose the stream.
      const { step: result } = await stream.ask({
        step: {
          close_sequence_ids: close,
          open,
          work: asked.map(({ work }) => work),
          inline: { data: Buffer.concat(asked.flatMap(({ rows }) => rows)) },
        },
      });
      result.open.forEach(({ status, error, seed }, i) => {
        if (status !== "OPEN_STATUS_OK") throw new Error(`${status}: ${error?.field} ${error?.message}`);
        going[i].params.seed = seed; // Where the server chose it, the text can go on with it on another stream.
      });
      result.work.forEach(({ status, message, tokens, finish_reason }, i) => {
        if (status !== "ROW_STATUS_OK") throw new Error(`${status}: ${message}`);
        going[i].tokens.push(...tokens.map((token) => token.token_id));
        going[i].finishReason = finish_reason;
      });
      if (result.go_away) throw Object.assign(new Error("the server asked us to leave"), { code: grpc.status.UNAVAILABLE });
      open = [];
      close = going.filter((text) => text.ended).map((text) => text.id);
      going = going.filter((text) => !text.ended);
    }
    await stream.end();
  } finally {
    stream.call.cancel(); // Does nothing where the stream has ended.
  }
}

if (process.argv.length !== 3) {
  console.error("usage: node worker.mjs ADDRESS, which is HOST:PORT or unix:PATH");
  process.exit(2);
}
const client = new pb.Sampler(process.argv[2], grpc.credentials.createInsecure(), {
  "grpc.max_reconnect_backoff_ms": 5000, // By default a channel waits up to two minutes before it reconnects.
});
const texts = [
  new Text("1", { temperature: 0 }),
  new Text("2", { top_p: 0.9, seed: "1" }),
  new Text("3", { frequency_penalty: 0.05, seed: "2" }),
];
while (texts.some((text) => !text.ended)) {
  try {
    await decode(client, texts);
  } catch (error) {
    if (!PASSING.includes(error.code)) throw error;
    console.error(`opening another stream: ${error.message}`);
    await sleep(1000);
  }
}
client.close();
for (const text of texts) {
  console.log(text.tokens.slice(1).map((token) => LETTERS[token]).join(""));
}
