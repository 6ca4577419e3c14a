// What the host writes and reads: plain data, little endian. src/backend/cuda/abi.rs holds the same structs, and both
// sides check the sizes.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Of a function that is in a kernel once, however many places call it: what is done seldom should not push what is done often
// out of the instruction cache.
#ifdef CROUPIER_EMULATOR
#define CROUPIER_ONCE
#else
#define CROUPIER_ONCE __noinline__
#endif

// Threads of a block. The emulator is also built with few, so that short rows have many chunks.
#ifndef CROUPIER_THREADS
#define CROUPIER_THREADS 512
#endif
constexpr u32 kThreads = CROUPIER_THREADS;
constexpr u32 kPerThread = 16;
// Tokens of a chunk, the unit that a row is cut into. It depends on nothing, so neither do results.
constexpr u32 kChunk = kThreads * kPerThread;
// Most chunks that one block holds notes about; longer rows need more blocks.
constexpr u32 kSliceChunks = 24;
// Most blocks that work on one row: the largest cluster that every Hopper GPU can launch.
constexpr u32 kMaxTeam = 8;
// Bins of a histogram.
constexpr u32 kBins = 512;
// Most tokens of a list.
constexpr u32 kListed = 1024;

// RowJob::flags.
constexpr u32 kGreedy = 1;
// Nothing is drawn: report on RowJob::token.
constexpr u32 kScore = 2;
// Only tokens listed in the adjusts may be emitted.
constexpr u32 kOnlyListed = 4;
// Report about the token, from the logits as sent (raw) or from what it is drawn from.
constexpr u32 kReportRaw = 8;
constexpr u32 kReportProcessed = 16;
// ... without its rank, which takes a pass of its own.
constexpr u32 kUnranked = 32;
// Weighing: the terms of the entropy, or what the draft gives to the tokens that the row leaves. Without either flag, what
// the row has beyond the drafts.
constexpr u32 kEntropy = 64;
constexpr u32 kDrafted = 128;
// Tell what the token is drawn from, in RowJob::left.
constexpr u32 kKeep = 256;

// RowResult::status.
constexpr u32 kOk = 0;
constexpr u32 kNan = 1;
constexpr u32 kPositiveInfinity = 2;
constexpr u32 kAllMasked = 3;
// The kernel's own contradiction; never a token.
constexpr u32 kBroken = 4;

// What a sequence knows about one token: src/sampling/adjust.rs.
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
// Above these, the place of the token's latest occurrence, modulo 2^16.
constexpr u32 kPlaceShift = 16;

// DraftRow::format: none, else a number format, of logits or with kSent of probabilities.
constexpr u32 kNoRow = 0;
constexpr u32 kRowF32 = 1;
constexpr u32 kRowF16 = 2;
constexpr u32 kRowBf16 = 3;
constexpr u32 kSent = 4;

// What a draft token was drawn from. Of the tokens among the adjusts of the row it stands beside, the masses are listed; of
// the others a row has them, if there is one.
struct DraftRow {
    u64 row;
    u64 masses;    // u64 for each adjust
    u64 last_key;  // the last token that was kept
    u64 need;      // least mass that was kept
    // What is left of a weight w is max(w * of_target - mass * of_draft, 0), to the nearest integer.
    double of_target;
    double of_draft;
    float max;  // the logit of mass one
    float scale;
    u32 format;
    u32 vocab_size;
};

// One row. Places are offsets from the start of the inputs; reports and what is left go to offsets in the outputs.
struct RowJob {
    u64 logits;        // 16-byte aligned, readable to a multiple of 16 bytes
    u64 adjusts;       // TokenAdjust, ascending tokens
    u64 adjust_index;  // u32: the first adjust of each chunk, and their number
    u64 requested;     // u32 token ids
    u64 report;        // ReportedToken: top_n, then one per requested id
    u64 uniform;
    u64 min_p_need;      // least mass that stays
    u64 top_p_fraction;  // of 2^32; 2^32 is off
    u64 last_key;        // weighing: the last token that is left
    u64 drafts;          // weighing: DraftRow, one after the other taken from what is left
    u64 left;            // Left, then as many ReportedToken as it counts, at most most_left
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
    u32 place;    // of the row's token in the text, modulo 2^16
    u32 last_n;   // full strength up to this distance
    u32 decay_n;  // over how many tokens behind it the strength falls off; 0 is off
    u32 token;
    u32 top_n;
    u32 requested_count;
    float max;  // weighing: the logit of mass one
    u32 draft_count;
    u32 most_left;
};

struct RowResult {
    u64 total;      // mass of what the reports are taken from; what was weighed
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

// What a token was drawn from.
struct Left {
    u64 total;
    u64 last_key;  // the last token that filters left; their least mass is RowJob::min_p_need
    u64 listed;    // tokens up to it, or kUnlisted
};
constexpr u64 kUnlisted = ~0ull;

static_assert(sizeof(TokenAdjust) == 16, "shared with the host");
static_assert(sizeof(DraftRow) == 64, "shared with the host");
static_assert(sizeof(RowJob) == 168, "shared with the host");
static_assert(sizeof(RowResult) == 48, "shared with the host");
static_assert(sizeof(ReportedToken) == 8, "shared with the host");
static_assert(sizeof(Left) == 24, "shared with the host");
