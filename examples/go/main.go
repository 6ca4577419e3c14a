// A worker in Go. Its model knows only which letter follows which. It drafts the most likely letters, and Croupier verifies
// them. examples/README.md says how to run it.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	pb "example.com/worker/croupierv1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

//go:generate protoc -I ../../proto --go_out=. --go_opt=module=example.com/worker,Mcroupier/v1/sampler.proto=example.com/worker/croupierv1 --go-grpc_out=. --go-grpc_opt=module=example.com/worker,Mcroupier/v1/sampler.proto=example.com/worker/croupierv1 croupier/v1/sampler.proto

const (
	prose   = "the dealer deals the cards and the cards are the dealer s and the player plays the cards the dealer deals "
	letters = " acdehlnprsty"
	drafts  = 3
)

// passing are the status codes after which a new stream may succeed. A reply that is too long also gives ResourceExhausted, but no
// reply here is.
var passing = []codes.Code{codes.Unavailable, codes.Aborted, codes.ResourceExhausted}

// text is the worker's state of a sequence: enough to open it again. Its first token is the prompt.
type text struct {
	id     uint64
	params *pb.SamplingParams
	tokens []uint32
	ended  bool
}

// model returns the logits of the letter after last, as little-endian f32, and the most likely letter.
func model(last uint32) (row []byte, likeliest uint32) {
	most := -1
	for i, letter := range letters {
		count := strings.Count(prose, letters[last:last+1]+string(letter))
		if count > most {
			likeliest, most = uint32(i), count
		}
		row = binary.LittleEndian.AppendUint32(row, math.Float32bits(float32(math.Log(float64(count)+1e-3))))
	}
	return row, likeliest
}

// ask sends a message and returns the answer. If the server has no room for the step, it waits and sends the message again.
func ask(stream grpc.BidiStreamingClient[pb.DecodeRequest, pb.DecodeResponse], request *pb.DecodeRequest) (*pb.StepResult, error) {
	for {
		_ = stream.Send(request) // If this fails, Recv returns the reason.
		reply, err := stream.Recv()
		if reply.GetStep().GetRefusal() == nil {
			return reply.GetStep(), err
		}
		time.Sleep(time.Duration(reply.GetStep().Refusal.RetryAfterMs) * time.Millisecond)
	}
}

// decode opens a stream, opens the unfinished texts on it, and decodes until all of them have ended.
func decode(client pb.SamplerClient, texts []*text) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := client.Decode(ctx, grpc.WaitForReady(true)) // Waits until it is connected.
	if err != nil {
		return err
	}
	config := &pb.StreamConfig{VocabSize: uint32(len(letters)), LogitsDtype: pb.LogitsDtype_LOGITS_DTYPE_F32, DefaultParams: &pb.SamplingParams{MaxTokens: proto.Uint32(200)}}
	if _, err := ask(stream, &pb.DecodeRequest{Request: &pb.DecodeRequest_Config{Config: config}}); err != nil {
		return err
	}
	going := slices.Clone(texts)
	for opened := false; ; opened = true {
		if going = slices.DeleteFunc(going, func(text *text) bool { return text.ended }); len(going) == 0 {
			return nil
		}
		step, logits := &pb.Step{}, []byte(nil)
		for _, text := range going {
			last, draft := text.tokens[len(text.tokens)-1], []uint32(nil)
			if !opened {
				step.Open = append(step.Open, &pb.OpenSequence{SequenceId: text.id, Params: text.params, PromptTokenIds: text.tokens[:1], OutputTokenIds: text.tokens[1:]})
			}
			for range drafts + 1 { // There is also a row after the last draft token.
				row, next := model(last)
				logits, draft, last = append(logits, row...), append(draft, next), next
			}
			verify := &pb.VerifyWork{DraftTokenIds: draft[:drafts], DraftDistribution: &pb.VerifyWork_Deterministic{Deterministic: &pb.DeterministicDraft{}}}
			step.Work = append(step.Work, &pb.Work{SequenceId: &text.id, Kind: &pb.Work_Verify{Verify: verify}})
		}
		time.Sleep(50 * time.Millisecond) // Simulates the model's time.
		step.Logits = &pb.Step_Inline{Inline: &pb.InlineLogits{Data: logits}}
		result, err := ask(stream, &pb.DecodeRequest{Request: &pb.DecodeRequest_Step{Step: step}})
		if err != nil {
			return err
		}
		for i, work := range result.Work {
			if work.Status != pb.RowStatus_ROW_STATUS_OK {
				return fmt.Errorf("%v: %s; %v", work.Status, work.Message, result.Open)
			}
			for _, token := range work.Tokens {
				going[i].tokens = append(going[i].tokens, token.TokenId)
			}
			going[i].ended = work.FinishReason != pb.FinishReason_FINISH_REASON_UNSPECIFIED
		}
		if result.GoAway {
			return status.Error(codes.Unavailable, "the server asked us to leave")
		}
	}
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: go run . ADDRESS, which is HOST:PORT or unix:PATH")
	}
	waits := grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second}
	waits.Backoff.MaxDelay = 5 * time.Second // By default a channel waits up to two minutes before it reconnects.
	channel, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(waits))
	if err != nil {
		log.Fatal(err)
	}
	texts := []*text{
		{id: 1, tokens: []uint32{0}, params: &pb.SamplingParams{Temperature: proto.Float32(0)}},
		{id: 2, tokens: []uint32{0}, params: &pb.SamplingParams{TopP: proto.Float32(0.9), Seed: proto.Uint64(1)}},
		{id: 3, tokens: []uint32{0}, params: &pb.SamplingParams{FrequencyPenalty: proto.Float32(0.05), Seed: proto.Uint64(2)}},
	}
	for err = decode(pb.NewSamplerClient(channel), texts); err != nil; err = decode(pb.NewSamplerClient(channel), texts) {
		if !slices.Contains(passing, status.Code(err)) {
			log.Fatal(err)
		}
		log.Printf("opening another stream: %v", err)
		time.Sleep(time.Second)
	}
	for _, text := range texts {
		for _, token := range text.tokens[1:] {
			fmt.Print(letters[token : token+1])
		}
		fmt.Println()
	}
}
