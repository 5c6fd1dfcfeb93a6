// Native CPU kernels of the engine: plain C ABI, no torch headers. See ops.py for shapes and units of every argument.
//
// Kernels are written once in GCC vector extensions (simd.inc, attention.inc, elementwise.inc) and compiled once per
// instruction set; the caller passes the one it wants, at most blend_best_isa().

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_X86_DISPATCH 1
#include <immintrin.h>
#endif

#define FORCE_INLINE inline __attribute__((always_inline))

namespace {

constexpr int kPageSize = 16;
constexpr float kLowest = -1e33f;  // maximum over no scores
constexpr int kMaxHeadDim = 512;
constexpr int kMaxUnitRows = 256;  // query rows that share one pass over the pages: their state stays in the L2 cache

constexpr int kMaxUnitHeads = 8;  // KV heads read side by side, as they lie, when few rows read them
constexpr int kLinearRows = 6;     // rows of a tile of a linear map

enum Isa : int32_t { kPortable = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3 };
enum DataType : int32_t { kFloat32 = 0, kBFloat16 = 1 };

}  // namespace

extern "C" {

struct AttentionArgs {
    const void* q;                // [rows][num_q_heads][head_dim]
    const void* kv_pages;         // [pages][num_kv_heads][K, V], each kPageSize * head_dim elements
    void* out;                    // [rows][num_q_heads][head_dim]
    float* lse;                   // [rows][num_q_heads] natural logarithm, or null
    const int32_t* row_ids;       // [listed] rows of q, group by group
    const int32_t* kv_lens;       // [listed] tokens each listed row reads
    const int32_t* group_indptr;  // [num_groups + 1] into row_ids and kv_lens
    const int32_t* page_starts;   // [num_groups] where a group's pages begin in page_indices
    const int32_t* page_indices;
    int64_t q_row_stride;
    int32_t num_groups, num_q_heads, num_kv_heads, head_dim;
    float scale;
    int32_t out_is_float32;
};

struct RopeArgs {
    const void* qkv;           // [tokens][num_q_heads + 2 * num_kv_heads][head_dim]
    void* q_out;               // [tokens][num_q_heads][head_dim]
    void* kv_pages;            // as in AttentionArgs
    const float* cosines;      // [tokens][head_dim / 2]
    const float* sines;        // [tokens][head_dim / 2]
    const int64_t* slots;      // [tokens] page * kPageSize + offset
    int64_t qkv_row_stride;
    int32_t num_q_heads, num_kv_heads, head_dim;
};

struct LinearArgs {
    const void* x;       // [num_rows][num_inputs], bfloat16 for AVX512_BF16 and float32 for the others
    const void* panels;  // [num_outputs / panel][num_inputs / 2][panel] words, of blend_linear_panel outputs
    const float* bias;   // [num_outputs], or null
    void* out;           // [num_rows][num_outputs], bfloat16 or float32
    int64_t num_rows;
    int32_t num_inputs, num_outputs, out_is_float32;
};

struct NormArgs {
    const void* x;
    void* residual;  // or null
    const void* weight;
    void* out;
    int32_t dim;
    float epsilon;
};

struct SiluArgs {
    const void* gate_up;
    void* out;
    int32_t dim;
};

struct ReadArgs {
    const void* words;
    int64_t num_words;  // a rest below 64 words is left out
};

struct MergeArgs {
    const float *out_a, *lse_a, *out_b, *lse_b;
    void* out;
    float* lse;  // or null
    int32_t head_dim;
};

}  // extern "C"

namespace {

struct AttentionUnit {
    int group, first_row, last_row, first_head, last_head;
};

struct AttentionScratch {
    std::vector<int32_t> lens;
    std::vector<float> queries, outputs, maxima, sums;

    void reset(int num_rows, int num_states, int head_dim, int num_lanes) {
        lens.resize(num_rows);
        queries.resize(size_t(num_states) * head_dim);
        outputs.assign(size_t(num_states) * head_dim, 0.0f);
        maxima.assign(num_states, kLowest);
        sums.assign(size_t(num_states) * num_lanes, 0.0f);
    }
};

#include "threads.inc"

constexpr int kChunksPerThread = 4;  // of rows that all take the same time
constexpr int kMinChunkRows = 8;

int num_row_chunks(int64_t num_rows, int num_threads) {
    return int(std::max<int64_t>(1, std::min<int64_t>(num_threads * kChunksPerThread, num_rows / kMinChunkRows)));
}

// body(row) for every row, in chunks of neighbours.
template <class Body>
void for_rows(int64_t num_rows, int num_threads, const Body& body) {
    const int num_chunks = num_row_chunks(num_rows, num_threads);
    share_out(num_threads, num_chunks, [&](int chunk) {
        const int64_t end = num_rows * (chunk + 1) / num_chunks;
        for (int64_t row = num_rows * chunk / num_chunks; row < end; ++row) body(row);
    });
}

int64_t linear_tiles(int64_t num_rows) { return std::max<int64_t>(1, (num_rows + kLinearRows - 1) / kLinearRows); }

namespace portable {
#define SIMD_BYTES 16
#define SIMD_DOT_BF16 0
#include "simd.inc"
#include "attention.inc"
#include "elementwise.inc"
#include "linear.inc"
#undef SIMD_BYTES
#undef SIMD_DOT_BF16
}  // namespace portable

#ifdef HAS_X86_DISPATCH
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#define SIMD_BYTES 32
#define SIMD_DOT_BF16 0
#include "simd.inc"
#include "attention.inc"
#include "elementwise.inc"
#include "linear.inc"
#undef SIMD_BYTES
#undef SIMD_DOT_BF16
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512")
namespace avx512 {
#define SIMD_BYTES 64
#define SIMD_DOT_BF16 0
#include "simd.inc"
#include "attention.inc"
#include "elementwise.inc"
#include "linear.inc"
#undef SIMD_BYTES
#undef SIMD_DOT_BF16
}  // namespace avx512
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,prefer-vector-width=512")
namespace avx512_bf16 {
#define SIMD_BYTES 64
#define SIMD_DOT_BF16 1
#include "simd.inc"
#include "attention.inc"
#include "elementwise.inc"
#include "linear.inc"
#undef SIMD_BYTES
#undef SIMD_DOT_BF16
}  // namespace avx512_bf16
#pragma GCC pop_options
#endif

// Calls KERNEL<type> of the chosen instruction set. AVX512_BF16 adds nothing to float32.
#define CALL_TYPED(float_space, bf16_space, KERNEL, dtype, ...)                         \
    ((dtype) == kBFloat16 ? bf16_space::KERNEL<bf16_space::BFloat16>(__VA_ARGS__)       \
                          : float_space::KERNEL<float_space::Float32>(__VA_ARGS__))
#ifdef HAS_X86_DISPATCH
#define CALL(KERNEL, isa, dtype, ...)                                                             \
    switch (isa) {                                                                                \
        case kAvx512Bf16: CALL_TYPED(avx512, avx512_bf16, KERNEL, dtype, __VA_ARGS__); break;     \
        case kAvx512: CALL_TYPED(avx512, avx512, KERNEL, dtype, __VA_ARGS__); break;              \
        case kAvx2: CALL_TYPED(avx2, avx2, KERNEL, dtype, __VA_ARGS__); break;                    \
        default: CALL_TYPED(portable, portable, KERNEL, dtype, __VA_ARGS__);                      \
    }
#define SELECT(NAME, isa)                                                                    \
    ((isa) == kAvx512Bf16 ? avx512_bf16::NAME                                                \
     : (isa) == kAvx512   ? avx512::NAME                                                     \
     : (isa) == kAvx2     ? avx2::NAME                                                       \
                          : portable::NAME)
#else
#define CALL(KERNEL, isa, dtype, ...) CALL_TYPED(portable, portable, KERNEL, dtype, __VA_ARGS__)
#define SELECT(NAME, isa) portable::NAME
#endif

// What one thread does at a time: some rows of a group and some KV heads. Largest first, so that no thread is left with
// a long unit at the end.
std::vector<AttentionUnit> split_into_units(const AttentionArgs& args, int num_threads) {
    const int max_rows = std::max(1, kMaxUnitRows * args.num_kv_heads / args.num_q_heads);
    const bool has_many_groups = num_threads == 1 || args.num_groups >= 4 * num_threads;
    std::vector<AttentionUnit> units;
    for (int group = 0; group < args.num_groups; ++group) {
        const int last = args.group_indptr[group + 1];
        for (int row = args.group_indptr[group]; row < last; row += max_rows) {
            const int end = std::min(row + max_rows, last);
            const int step = has_many_groups && end - row == 1 ? std::min(kMaxUnitHeads, args.num_kv_heads) : 1;
            for (int head = 0; head < args.num_kv_heads; head += step)
                units.push_back({group, row, end, head, std::min(head + step, args.num_kv_heads)});
        }
    }
    auto work = [&](const AttentionUnit& unit) {
        return int64_t(unit.last_row - unit.first_row + 4) * args.kv_lens[unit.last_row - 1];
    };
    if (num_threads > 1)
        std::stable_sort(units.begin(), units.end(), [&](const auto& a, const auto& b) { return work(a) > work(b); });
    return units;
}

// Two slots of bfloat16 values share a word; a cut between them would let two threads write it.
int64_t end_of_run(const RopeArgs& args, int64_t token, int64_t num_tokens) {
    const bool splits_word = token > 0 && token < num_tokens && args.slots[token] % 2 == 1;
    return splits_word ? token + 1 : token;
}

}  // namespace

extern "C" {

int32_t blend_best_isa() {
#ifdef HAS_X86_DISPATCH
    __builtin_cpu_init();
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512 && __builtin_cpu_supports("avx512bf16")) return kAvx512Bf16;
    if (avx512) return kAvx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kAvx2;
#endif
    return kPortable;
}

// AMX: what it multiplies, the vector units cannot keep up with.
int32_t blend_has_matrix_unit() {
#ifdef HAS_X86_DISPATCH
    __builtin_cpu_init();
    return __builtin_cpu_supports("amx-bf16") != 0;
#else
    return 0;
#endif
}

void blend_attention(const AttentionArgs* args, int32_t dtype, int32_t isa, int32_t num_threads) {
    const auto units = split_into_units(*args, num_threads);
    share_out(num_threads, int(units.size()), [&](int i) {
        static thread_local AttentionScratch scratch;
        CALL(attend, isa, dtype, *args, units[i], scratch);
    });
}

void blend_rope_and_append(const RopeArgs* args, int64_t num_tokens, int32_t dtype, int32_t isa, int32_t num_threads) {
    const int num_runs = num_row_chunks(num_tokens, num_threads);
    share_out(num_threads, num_runs, [&](int run) {
        const int64_t end = end_of_run(*args, num_tokens * (run + 1) / num_runs, num_tokens);
        for (int64_t token = end_of_run(*args, num_tokens * run / num_runs, num_tokens); token < end; ++token)
            CALL(rope_and_append, isa, dtype, *args, token);
    });
}

// Outputs of a linear map whose weights lie together.
int32_t blend_linear_panel(int32_t isa) { return SELECT(kPanel, isa); }

// Each thread takes a long run of tiles, then short ones until none is left; where a cut falls inside a panel both sides read it.
void blend_linear(const LinearArgs* args, int32_t isa, int32_t num_threads) {
    const int64_t num_work = args->num_outputs / blend_linear_panel(isa) * linear_tiles(args->num_rows);
    constexpr int kLong = 6, kParts = 8;  // of a thread's share, in parts: one long run, the others one part each
    const int num_runs = num_threads == 1 ? 1 : num_threads * (kParts - kLong + 1);
    const auto run_tiles = SELECT(linear, isa);
    auto start = [&](int run) {
        if (run == num_runs) return num_work;
        const int num_parts = run <= num_threads ? run * kLong : num_threads * kLong + run - num_threads;
        return num_work * num_parts / (num_threads * kParts);
    };
    share_out(num_threads, num_runs, [&](int run) { run_tiles(*args, start(run), start(run + 1)); });
}

void blend_rms_norm(const NormArgs* args, int64_t num_rows, int32_t dtype, int32_t isa, int32_t num_threads) {
    for_rows(num_rows, num_threads, [&](int64_t row) { CALL(rms_norm, isa, dtype, *args, row); });
}

void blend_silu_and_multiply(const SiluArgs* args, int64_t num_rows, int32_t dtype, int32_t isa, int32_t num_threads) {
    for_rows(num_rows, num_threads, [&](int64_t row) { CALL(silu_and_multiply, isa, dtype, *args, row); });
}

void blend_merge_states(const MergeArgs* args, int64_t num_heads, int32_t dtype, int32_t isa, int32_t num_threads) {
    for_rows(num_heads, num_threads, [&](int64_t head) { CALL(merge_states, isa, dtype, *args, head); });
}

// To measure what a core can read: the limit of attention over long contexts.
uint32_t blend_sum_words(const ReadArgs* args, int32_t isa) {
    uint32_t total = 0;
    CALL(sum_words, isa, kFloat32, *args, total);
    return total;
}

}  // extern "C"
