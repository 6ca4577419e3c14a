// What the host writes and reads: plain data, little endian. src/backend/cuda/abi.rs holds the same structs, and both
// sides check the sizes.
//
// Words that all files here use:
//   row         the logits of one position, one for each token of the vocabulary
//   chunk       kChunk consecutive tokens: the unit that a row is cut into
//   team        the blocks that work on one row; a cluster, where the GPU has clusters
//   slice       the consecutive chunks of a row that one block works on
//   first look  the first pass over a row (sample.cu); a pass (pass.cuh) goes over it again
//   order       of a row's tokens: by descending logit, then by ascending id
//   key         a token's logit and id as an integer, which is smaller the earlier the token is in the order (numbers.cuh)
//   mass        a token's weight as an integer: 2^40 for the most likely token (numbers.cuh)
//   adjust      what is known about one token: a ban, a bias, what penalties need; a token that has one is touched
//   raw         as sent, without adjusts
//   delegate    the largest logit of the untouched tokens that a thread has in a chunk
//   list        up to kListed tokens in shared memory, by their keys (list.cuh)
//   box         where a block puts what the others of its team read after a phase (team.cuh)
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Marks a function that is compiled into a kernel once, however many places call it: code that runs rarely should not push code
// that runs often out of the instruction cache.
#ifdef CROUPIER_EMULATOR
#define CROUPIER_ONCE
#else
#define CROUPIER_ONCE __noinline__
#endif

// Threads of a block. The emulator is also built with few, so that even short rows have many chunks.
#ifndef CROUPIER_THREADS
#define CROUPIER_THREADS 512
#endif
constexpr u32 kThreads = CROUPIER_THREADS;
constexpr u32 kPerThread = 16;
// Tokens of a chunk. The size is the same for every batch and layout, so results do not depend on these.
constexpr u32 kChunk = kThreads * kPerThread;
// The most chunks that one block keeps notes about; longer rows need more blocks.
constexpr u32 kSliceChunks = 24;
// The most blocks that work on one row: the largest cluster that every Hopper GPU can launch.
constexpr u32 kMaxTeam = 8;
// Bins of a histogram.
constexpr u32 kBins = 512;
// The most tokens of a list.
constexpr u32 kListed = 1024;

// RowJob::flags.
constexpr u32 kGreedy = 1;
// Nothing is drawn: the report is about RowJob::token.
constexpr u32 kScore = 2;
// Only tokens listed in the adjusts may be emitted.
constexpr u32 kOnlyListed = 4;
// Report about the token, from the logits as sent (raw) or from the distribution that it is drawn from (processed).
constexpr u32 kReportRaw = 8;
constexpr u32 kReportProcessed = 16;
// Leave out the token's rank, which takes a pass of its own.
constexpr u32 kUnranked = 32;
// For weigh_rows, what to sum: the terms of the entropy, or the masses that the draft gives to the tokens that the row's filters
// leave. Without either flag, what the row has beyond the drafts.
constexpr u32 kEntropy = 64;
constexpr u32 kDrafted = 128;
// Write the distribution that the token is drawn from to RowJob::left.
constexpr u32 kKeep = 256;
// Frequency and presence penalties are subtracted before the others multiply and divide.
constexpr u32 kSubtractFirst = 512;

// RowResult::status.
constexpr u32 kOk = 0;
constexpr u32 kNan = 1;
constexpr u32 kPositiveInfinity = 2;
constexpr u32 kAllMasked = 3;
// The kernel contradicted itself, so there is no token.
constexpr u32 kBroken = 4;

// An adjust: what a sequence knows about one token (src/sampling/adjust.rs).
struct TokenAdjust {
    u32 token;
    u32 flags;
    float bias;
    u32 output_count;
};
constexpr u32 kBanned = 1;
constexpr u32 kSeen = 2;
constexpr u32 kPrompt = 4;
constexpr u32 kEnds = 8;
constexpr u32 kLate = 16;
// The bits above these: the position of the token's latest occurrence in the text, modulo 2^16.
constexpr u32 kPlaceShift = 16;

// DraftRow::format: no row, or its number format. With kSent it holds probabilities, otherwise logits.
constexpr u32 kNoRow = 0;
constexpr u32 kRowF32 = 1;
constexpr u32 kRowF16 = 2;
constexpr u32 kRowBf16 = 3;
constexpr u32 kSent = 4;

// The distribution that a draft token was drawn from. The masses of tokens among the target row's adjusts are listed; those of all
// other tokens come from the draft's row, if it has one.
struct DraftRow {
    u64 row;
    u64 masses;    // u64 for each adjust
    u64 last_key;  // the last token that was kept
    u64 need;      // the least mass that was kept
    // A weight w becomes max(w * of_target - mass * of_draft, 0), rounded to the nearest integer.
    double of_target;
    double of_draft;
    float max;  // the logit of mass one
    float scale;
    u32 format;
    u32 vocab_size;
};

// One row. Places are offsets in bytes from the start of the inputs; `report` and `left` are offsets in the outputs.
struct RowJob {
    u64 logits;        // 16-byte aligned, readable to a multiple of 16 bytes
    u64 adjusts;       // TokenAdjust, by ascending token
    u64 adjust_index;  // u32: the index of the first adjust of each chunk, then the number of adjusts
    u64 requested;     // u32 token ids
    u64 report;        // ReportedToken: top_n, then one per requested id
    u64 uniform;
    u64 min_p_need;      // the least mass that stays
    u64 top_p_fraction;  // in units of 2^-32; 2^32 is off
    u64 last_key;        // weigh_rows: the last token that filters left
    u64 drafts;          // weigh_rows: DraftRow, subtracted one after the other
    u64 left;            // Left, then as many ReportedToken as it lists, at most most_left
    u32 vocab_size;
    u32 flags;
    u32 top_k;  // 0 is off
    u32 adjust_count;
    float scale;      // log2(e) / temperature
    float raw_scale;  // log2(e)
    float repetition;
    float frequency;
    float presence;
    float encoder;
    float length;
    u32 place;    // position of the row's token in the text, modulo 2^16
    u32 last_n;   // penalties have full strength up to this distance
    u32 decay_n;  // over how many tokens beyond it the strength falls off; 0 is off
    u32 token;
    u32 top_n;
    u32 requested_count;
    float max;  // weigh_rows: the logit of mass one
    u32 draft_count;
    u32 most_left;
};

// A row of some columns that is written as a row of the whole vocabulary.
struct SpreadJob {
    u64 from;    // the address of its first logit, one for each column
    u64 to;      // 16-byte aligned, writable to a multiple of 16 bytes
    u64 tokens;  // u32: the token of each column, all different
    u32 columns;
    u32 vocab_size;
};

struct RowResult {
    u64 total;      // mass of the distribution that is reported from; weigh_rows: the sum
    u64 last_key;   // the last token that filters left
    u64 first_key;  // the first token of the order
    u32 status;
    u32 token;
    float logit;  // of the token, -infinity if it has no probability
    float max;    // the logit of mass one
    u32 rank;
    u32 top_count;
};

struct ReportedToken {
    u32 token;
    float logit;  // -infinity if it has no probability
};

// The distribution that a token was drawn from.
struct Left {
    u64 total;
    u64 last_key;  // the last token that filters left; their least mass is RowJob::min_p_need
    u64 listed;    // how many tokens are left and listed, or kUnlisted
};
constexpr u64 kUnlisted = ~0ull;

static_assert(sizeof(TokenAdjust) == 16, "shared with the host");
static_assert(sizeof(DraftRow) == 64, "shared with the host");
static_assert(sizeof(RowJob) == 168, "shared with the host");
static_assert(sizeof(SpreadJob) == 32, "shared with the host");
static_assert(sizeof(RowResult) == 48, "shared with the host");
static_assert(sizeof(ReportedToken) == 8, "shared with the host");
static_assert(sizeof(Left) == 24, "shared with the host");
