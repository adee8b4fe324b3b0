// The recurrence over whole sequences in blocks of four tokens, i and j within a block, gamma_i the decay from its
// entry to token i, Gamma_ij that from token j to token i:
//
//   r_i = write_i v_i - erase_i ( gamma_i (k_i + mix_i q_i)^T S + sum_{j<i} Gamma_ij ((k_i + mix_i q_i).k_j) r_j )
//   o_i = scale ( gamma_i q_i^T S + sum_{j<=i} Gamma_ij (q_i.k_j) r_j )
//   S  <- gamma_3 S + sum_j Gamma_3j k_j r_j^T
//
// The eight reads take one sweep over a tile of the state's columns and the four writes another: twelve multiply-adds
// for every element that is loaded, all of them needed by the recurrence itself. Longer blocks (recurrence_chunk.cpp)
// do more arithmetic between tokens and gain nothing while a tile stays in the nearest cache.
//
// The decay is not multiplied into the state at every block: what is stored is S / fold, and only when fold gets small
// is it multiplied in, and every kFoldTokens tokens: a sequence that ends there and goes on in another call has the
// same bits as in one.
#include "kernels/cpu/recurrence_blocked.h"

#include "core/threads.h"
#include "kernels/cpu/recurrence_chunk.h"

#ifndef QDELTA_KERNELS_CPU_RECURRENCE_BLOCKED_ONCE
#define QDELTA_KERNELS_CPU_RECURRENCE_BLOCKED_ONCE
namespace qdelta::cpu {

inline constexpr int kMostHeads = 4;    // that a thread advances side by side
inline constexpr int kTokensAhead = 8;  // so long before their turn rows are asked for

// What one thread works on: all tokens of some heads of a sequence, columns [begin, end).
struct BlockedUnit {
  std::int64_t sequence, head, heads, begin, end;
};

struct BlockedScratch {
  std::int64_t ld;          // of q and k
  std::int64_t state_size;  // of one head
  float *q, *k;             // [kRecurrenceBlock][ld]
  float *v, *o;             // [kRecurrenceBlock][kColumnGroup]
  float* states;            // [heads][columns / tile][Kp][tile]

  BlockedScratch(const ChunkPlan& plan, std::int64_t heads, BumpAllocator& memory)
      : ld(plan.ldk),
        state_size(plan.Kp * (plan.split ? kColumnGroup : plan.groups * kColumnGroup)),
        q(memory.take<float>(kRecurrenceBlock * ld)),
        k(memory.take<float>(kRecurrenceBlock * ld)),
        v(memory.take<float>(kRecurrenceBlock * kColumnGroup)),
        o(memory.take<float>(kRecurrenceBlock * kColumnGroup)),
        states(memory.take<float>(heads * state_size)) {}
};

}  // namespace qdelta::cpu
#endif

#define HWY_TARGET_INCLUDE "kernels/cpu/recurrence_blocked.cpp"
#include "kernels/cpu/highway.h"
#include "kernels/cpu/matrix-inl.h"
#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace qdelta::cpu::HWY_NAMESPACE {

// As many accumulators as registers allow: eight reads of two vectors, or of one.
#if HWY_TARGET <= HWY_AVX3
inline constexpr int kTileVectors = 2;
#else
inline constexpr int kTileVectors = 1;
#endif
HWY_INLINE std::int64_t TileColumns() { return kTileVectors * static_cast<std::int64_t>(hn::Lanes(Floats())); }

inline constexpr float kSmallestFold = 1.0F / 256;
inline constexpr std::int64_t kFoldTokens = 64;

// The rows of tokens to come. They are a whole token apart, too far for the processor to guess where the next one is,
// and asking for all of them at once would stall it: so a few are asked for before each sweep.
class RowsToCome {
 public:
  template <class Byte>
  void add(const RowsOf<Byte>& rows, std::int64_t t, std::int64_t columns) {
    if (rows.step == 1) rows_[count_++] = {rows.row(t), columns * static_cast<std::int64_t>(size_of(rows.dtype))};
  }
  void restart() { count_ = at_ = 0; }
  void share(std::int64_t calls) { per_call_ = calls > 0 ? ceil_div(count_, calls) : 0; }
  void ask() {
    for (const std::int64_t end = std::min(at_ + per_call_, count_); at_ < end; ++at_) {
      for (std::int64_t byte = 0; byte < rows_[at_].bytes; byte += 64) hwy::Prefetch(rows_[at_].data + byte);
    }
  }

 private:
  struct Row {
    const std::byte* data;
    std::int64_t bytes;
  };
  Row rows_[4 * kRecurrenceBlock * kMostHeads]{};
  std::int64_t count_ = 0, at_ = 0, per_call_ = 0;
};

// The sums of the lanes of four vectors.
HWY_INLINE void SumsOfLanes(const Vector* v, float* HWY_RESTRICT sums) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 4; ++i) sums[i] = hn::GetLane(v[i]);
#else
  const Floats d;
  const hn::RepartitionToWide<Floats> wide;
  const hn::Full128<float> quad;
  const Vector ab = hn::Add(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1]));
  const Vector cd = hn::Add(hn::InterleaveLower(d, v[2], v[3]), hn::InterleaveUpper(d, v[2], v[3]));
  const auto lower = hn::InterleaveLower(wide, hn::BitCast(wide, ab), hn::BitCast(wide, cd));
  const auto upper = hn::InterleaveUpper(wide, hn::BitCast(wide, ab), hn::BitCast(wide, cd));
  HWY_ALIGN float blocks[hn::MaxLanes(d)];
  hn::Store(hn::Add(hn::BitCast(d, lower), hn::BitCast(d, upper)), d, blocks);
  auto sum = hn::Load(quad, blocks);
  for (std::size_t i = 4; i < hn::Lanes(d); i += 4) sum = hn::Add(sum, hn::Load(quad, blocks + i));
  hn::StoreU(sum, quad, sums);
#endif
}

// Products of the rows of a block, four by four as they are summed up. What is written as four is read as four or one
// by one: the processor forwards no other reads of memory just written.
struct Gram {
  HWY_ALIGN float qq[kRecurrenceBlock];  // q_i.q_i
  HWY_ALIGN float kk[kRecurrenceBlock];  // k_i.k_i
  HWY_ALIGN float keys[8];               // k_i.k_j, j < i
  HWY_ALIGN float reads[12];             // q_i.k_j, j <= i

  static constexpr int key(int i, int j) { return i * (i - 1) / 2 + j; }
  static constexpr int read(int i, int j) { return i * (i + 1) / 2 + j; }
};

// From rows wherever they are; leaves copies of them in q_copy and k_copy, `ld` apart.
HWY_INLINE void GramOf(const float* q, std::int64_t q_step, const float* k, std::int64_t k_step, std::int64_t padded,
                       float* q_copy, float* k_copy, std::int64_t ld, Gram& gram) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  Vector qq[kRecurrenceBlock];
  Vector kk[kRecurrenceBlock];
  Vector keys[8];
  Vector reads[12];
  for (Vector& sum : qq) sum = hn::Zero(d);
  for (Vector& sum : kk) sum = hn::Zero(d);
  for (Vector& sum : keys) sum = hn::Zero(d);
  for (Vector& sum : reads) sum = hn::Zero(d);
  for (std::int64_t n = 0; n < padded; n += lanes) {
    Vector key[kRecurrenceBlock];
    for (int j = 0; j < kRecurrenceBlock; ++j) {
      key[j] = hn::LoadU(d, k + j * k_step + n);
      hn::Store(key[j], d, k_copy + j * ld + n);
      kk[j] = hn::MulAdd(key[j], key[j], kk[j]);
    }
    for (int i = 0; i < kRecurrenceBlock; ++i) {
      const Vector query = hn::LoadU(d, q + i * q_step + n);
      hn::Store(query, d, q_copy + i * ld + n);
      qq[i] = hn::MulAdd(query, query, qq[i]);
      for (int j = 0; j < i; ++j) keys[Gram::key(i, j)] = hn::MulAdd(key[i], key[j], keys[Gram::key(i, j)]);
      for (int j = 0; j <= i; ++j) reads[Gram::read(i, j)] = hn::MulAdd(query, key[j], reads[Gram::read(i, j)]);
    }
  }
  SumsOfLanes(qq, gram.qq);
  SumsOfLanes(kk, gram.kk);
  for (int i = 0; i < 8; i += 4) SumsOfLanes(keys + i, gram.keys + i);
  for (int i = 0; i < 12; i += 4) SumsOfLanes(reads + i, gram.reads + i);
}

// The factors that normalise the rows of a block.
struct BlockNorms {
  HWY_ALIGN float q[kRecurrenceBlock];
  HWY_ALIGN float k[kRecurrenceBlock];
};

HWY_INLINE void NormsOf(const Gram& gram, BlockNorms& norms) {
  const hn::CappedTag<float, kRecurrenceBlock> d;
  const auto epsilon = hn::Set(d, static_cast<float>(kNormEpsilon));
  const auto one = hn::Set(d, 1.0F);
  for (std::size_t i = 0; i < kRecurrenceBlock; i += hn::Lanes(d)) {
    hn::Store(hn::Div(one, hn::Sqrt(hn::Add(hn::Load(d, gram.qq + i), epsilon))), d, norms.q + i);
    hn::Store(hn::Div(one, hn::Sqrt(hn::Add(hn::Load(d, gram.kk + i), epsilon))), d, norms.k + i);
  }
}

// The products of the rows of the tokens from `first` on, which are left packed, and their norms. Tokens beyond the end
// are zero vectors.
HWY_INLINE void PackRows(const ChunkPlan& plan, const RecurrenceInputs& in, std::int64_t sequence, std::int64_t head,
                         std::int64_t first, std::int64_t rows, const BlockedScratch& s, Gram& gram,
                         BlockNorms& norms) {
  const RecurrenceLayout& at = plan.at;
  const InRows q = at.rows(in.q, sequence, at.q_head(head));
  const InRows k = at.rows(in.k, sequence, at.q_head(head));
  if (q.dtype == DType::f32 && k.dtype == DType::f32 && q.step == 1 && k.step == 1 && at.K == plan.Kp &&
      rows == kRecurrenceBlock) {
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(float));
    GramOf(reinterpret_cast<const float*>(q.row(first)), q.token_bytes / kSize,
           reinterpret_cast<const float*>(k.row(first)), k.token_bytes / kSize, plan.Kp, s.q, s.k, s.ld, gram);
  } else {
    for (std::int64_t r = 0; r < kRecurrenceBlock; ++r) {
      if (r < rows) {
        LoadRow(q.row(first + r), q.dtype, q.step, at.K, s.q + r * s.ld, plan.Kp);
        LoadRow(k.row(first + r), k.dtype, k.step, at.K, s.k + r * s.ld, plan.Kp);
      } else {
        std::fill_n(s.q + r * s.ld, plan.Kp, 0.0F);
        std::fill_n(s.k + r * s.ld, plan.Kp, 0.0F);
      }
    }
    GramOf(s.q, s.ld, s.k, s.ld, plan.Kp, s.q, s.k, s.ld, gram);
  }
  if (!in.qk_l2norm) {
    std::fill_n(norms.q, kRecurrenceBlock, 1.0F);
    std::fill_n(norms.k, kRecurrenceBlock, 1.0F);
    return;
  }
  // Rows are multiplied as they are and the factors that normalise them applied to the results, except for rows so long
  // that their products might be no floats. Each row for itself: what one holds must not touch those before it.
  NormsOf(gram, norms);
  bool all_moderate = true;
  const auto shorten = [&](float square, float* row, float& factor) {
    constexpr float kMostSquare = 1e12F;
    if (square <= kMostSquare) return;
    ScaleInto(NormOf(row, plan.Kp).factor, row, row, plan.Kp);
    factor = 1.0F;
    all_moderate = false;
  };
  for (int i = 0; i < kRecurrenceBlock; ++i) {
    shorten(gram.qq[i], s.q + i * s.ld, norms.q[i]);
    shorten(gram.kk[i], s.k + i * s.ld, norms.k[i]);
  }
  if (!all_moderate) GramOf(s.q, s.ld, s.k, s.ld, plan.Kp, s.q, s.k, s.ld, gram);
}

// Four tokens of a head: their packed rows, not normalised, and the factors of the formulas at the top with norms and
// fold worked in.
struct Block {
  const float *q, *k;  // rows `ld` apart
  std::int64_t ld;
  float correct[kRecurrenceBlock][kRecurrenceBlock];  // -erase_i Gamma_ij ((k_i + mix_i q_i).k_j), j < i
  float attend[kRecurrenceBlock][kRecurrenceBlock];   // scale Gamma_ij (q_i.k_j), j <= i
  float write[kRecurrenceBlock];
  float from_k[kRecurrenceBlock];      // -erase_i gamma_i fold
  float from_kq[kRecurrenceBlock];     // -erase_i mix_i gamma_i fold
  float from_q[kRecurrenceBlock];      // scale gamma_i fold
  float into_state[kRecurrenceBlock];  // Gamma_3j / fold after the block
  float shrink;                        // what the state is multiplied by; 1 nearly always
};

// The block of the tokens from `first` on. Tokens beyond the end change nothing: zero vectors, no decay. `fold` before
// the block becomes that behind it.
HWY_INLINE Block PackBlock(const ChunkPlan& plan, const RecurrenceInputs& in, std::int64_t sequence, std::int64_t head,
                           std::int64_t first, const BlockedScratch& s, float& fold) {
  const RecurrenceLayout& at = plan.at;
  const std::int64_t rows = std::min<std::int64_t>(kRecurrenceBlock, at.length(sequence) - first);
  BlockNorms norms{};
  Gram gram{};
  PackRows(plan, in, sequence, head, first, rows, s, gram, norms);
  const InRows g = at.rows(in.g, sequence, head);
  const InRows beta = at.rows(in.beta, sequence, head);
  const InRows lambda = at.rows(in.lambda, sequence, head);
  Block block{};
  block.ld = s.ld;
  block.q = s.q;
  block.k = s.k;
  float gamma[kRecurrenceBlock];  // Gamma_ij |k_j|^-1 for the current i
  float from_entry = 1.0F;
  for (int i = 0; i < kRecurrenceBlock; ++i) {
    RuleOutputs<float> out;
    if (i < rows) {
      out = rule_forward<float>(in.rule, {gate_at(g, first + i), gate_at(beta, first + i), gate_at(lambda, first + i),
                                          gram.kk[i] * norms.k[i] * norms.k[i]});
    }
    const float decay = std::exp(out.log_decay);
    from_entry *= decay;
    const float by_k = -out.erase * norms.k[i];
    const float by_kq = -out.erase * out.mix * norms.q[i];
    const float by_q = in.scale * norms.q[i];
    for (int j = 0; j < i; ++j) {
      gamma[j] *= decay;
      block.correct[i][j] = gamma[j] * (by_k * gram.keys[Gram::key(i, j)] + by_kq * gram.reads[Gram::read(i, j)]);
    }
    gamma[i] = norms.k[i];
    for (int j = 0; j <= i; ++j) block.attend[i][j] = gamma[j] * (by_q * gram.reads[Gram::read(i, j)]);
    block.write[i] = out.write;
    block.from_k[i] = by_k * from_entry * fold;
    block.from_kq[i] = by_kq * from_entry * fold;
    block.from_q[i] = by_q * from_entry * fold;
  }
  fold *= from_entry;
  block.shrink = 1.0F;
  if (fold < kSmallestFold || (first + kRecurrenceBlock) % kFoldTokens == 0) {
    block.shrink = fold;
    fold = 1.0F;
  }
  const float unfold = 1.0F / fold;
  for (int j = 0; j < kRecurrenceBlock; ++j) block.into_state[j] = gamma[j] * unfold;
  return block;
}

// S <- shrink S + sum_j k_j r_j^T over a tile.
template <bool kShrink>
HWY_INLINE void WriteTile(const Block& block, const Vector (&r)[kRecurrenceBlock][kTileVectors], std::int64_t Kp,
                          float* HWY_RESTRICT state) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const Vector shrink = hn::Set(d, block.shrink);
  const float* HWY_RESTRICT k = block.k;
  const std::int64_t ld = block.ld;
#pragma GCC unroll 4
  for (std::int64_t n = 0; n < Kp; ++n) {
    float* row = state + n * kTileVectors * lanes;
    Vector s[kTileVectors];
    for (int c = 0; c < kTileVectors; ++c) {
      s[c] = hn::Load(d, row + c * lanes);
      if constexpr (kShrink) s[c] = hn::Mul(s[c], shrink);
    }
    for (int j = 0; j < kRecurrenceBlock; ++j) {
      const Vector factor = hn::Set(d, k[j * ld + n]);
      for (int c = 0; c < kTileVectors; ++c) s[c] = hn::MulAdd(factor, r[j][c], s[c]);
    }
    for (int c = 0; c < kTileVectors; ++c) hn::Store(s[c], d, row + c * lanes);
  }
}

// Four rows of a tile: of v, and of o.
struct TileRows {
  const float* v;
  float* o;
  std::int64_t v_step, o_step;
};

// One block through one tile of the state, in place.
template <bool kErases>
HWY_INLINE void AdvanceTile(const Block& block, std::int64_t Kp, float* HWY_RESTRICT state, const TileRows& rows,
                            RowsToCome& to_come) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  Vector by_q[kRecurrenceBlock][kTileVectors];
  Vector by_k[kRecurrenceBlock][kTileVectors];
  for (int i = 0; i < kRecurrenceBlock; ++i) {
    for (int c = 0; c < kTileVectors; ++c) by_q[i][c] = by_k[i][c] = hn::Zero(d);
  }
  to_come.ask();
  const float* HWY_RESTRICT q = block.q;
  const float* HWY_RESTRICT k = block.k;
  const std::int64_t ld = block.ld;
#pragma GCC unroll 4
  for (std::int64_t n = 0; n < Kp; ++n) {
    const float* row = state + n * kTileVectors * lanes;
    Vector s[kTileVectors];
    for (int c = 0; c < kTileVectors; ++c) s[c] = hn::Load(d, row + c * lanes);
    for (int i = 0; i < kRecurrenceBlock; ++i) {
      const Vector factor = hn::Set(d, q[i * ld + n]);
      for (int c = 0; c < kTileVectors; ++c) by_q[i][c] = hn::MulAdd(factor, s[c], by_q[i][c]);
    }
    if constexpr (kErases) {
      for (int i = 0; i < kRecurrenceBlock; ++i) {
        const Vector factor = hn::Set(d, k[i * ld + n]);
        for (int c = 0; c < kTileVectors; ++c) by_k[i][c] = hn::MulAdd(factor, s[c], by_k[i][c]);
      }
    }
  }
  Vector r[kRecurrenceBlock][kTileVectors];
  for (int i = 0; i < kRecurrenceBlock; ++i) {
    for (int c = 0; c < kTileVectors; ++c) {
      r[i][c] = hn::Mul(hn::Set(d, block.write[i]), hn::LoadU(d, rows.v + i * rows.v_step + c * lanes));
      if constexpr (kErases) {
        r[i][c] = hn::MulAdd(hn::Set(d, block.from_k[i]), by_k[i][c], r[i][c]);
        r[i][c] = hn::MulAdd(hn::Set(d, block.from_kq[i]), by_q[i][c], r[i][c]);
        for (int j = 0; j < i; ++j) r[i][c] = hn::MulAdd(hn::Set(d, block.correct[i][j]), r[j][c], r[i][c]);
      }
      Vector out = hn::Mul(hn::Set(d, block.from_q[i]), by_q[i][c]);
      for (int j = 0; j <= i; ++j) out = hn::MulAdd(hn::Set(d, block.attend[i][j]), r[j][c], out);
      hn::StoreU(out, d, rows.o + i * rows.o_step + c * lanes);
    }
  }
  to_come.ask();
  for (int j = 0; j < kRecurrenceBlock; ++j) {
    for (int c = 0; c < kTileVectors; ++c) r[j][c] = hn::Mul(hn::Set(d, block.into_state[j]), r[j][c]);
  }
  if (block.shrink == 1.0F) {
    WriteTile<false>(block, r, Kp, state);
  } else {
    WriteTile<true>(block, r, Kp, state);
  }
}

// One block of one head through all its tiles.
HWY_INLINE void AdvanceBlock(const ChunkPlan& plan, const RecurrenceInputs& in, const TensorView& o,
                             const BlockedUnit& unit, std::int64_t head, std::int64_t first, float& fold,
                             const BlockedScratch& s, float* states, RowsToCome& to_come) {
  const RecurrenceLayout& at = plan.at;
  const std::int64_t tile = TileColumns();
  const bool erases = traits_of(in.rule).erases;
  const InRows v_rows = at.rows(in.v, unit.sequence, head);
  const OutRows o_rows = at.rows(o, unit.sequence, head);
  const auto v_size = static_cast<std::int64_t>(size_of(v_rows.dtype));
  const auto o_size = static_cast<std::int64_t>(size_of(o_rows.dtype));
  const std::int64_t rows = std::min<std::int64_t>(kRecurrenceBlock, at.length(unit.sequence) - first);
  const bool direct = v_rows.dtype == DType::f32 && o_rows.dtype == DType::f32 && v_rows.step == 1 &&
                      o_rows.step == 1 && rows == kRecurrenceBlock;
  const Block block = PackBlock(plan, in, unit.sequence, head, first, s, fold);
  for (std::int64_t begin = unit.begin; begin < unit.end; begin += tile) {
    const std::int64_t width = std::min(tile, unit.end - begin);
    float* state = states + (begin - unit.begin) * plan.Kp;
    const std::byte* v = v_rows.row(first) + begin * v_rows.step * v_size;
    std::byte* out = o_rows.row(first) + begin * o_rows.step * o_size;
    // Whole tiles are read and written where they are, the others by way of a padded copy.
    const bool in_place = direct && width == tile;
    TileRows tile_rows{s.v, s.o, kColumnGroup, kColumnGroup};
    if (in_place) {
      tile_rows = {reinterpret_cast<const float*>(v), reinterpret_cast<float*>(out), v_rows.token_bytes / v_size,
                   o_rows.token_bytes / o_size};
    } else {
      for (std::int64_t i = 0; i < kRecurrenceBlock; ++i) {
        if (i < rows) {
          LoadRow(v + i * v_rows.token_bytes, v_rows.dtype, v_rows.step, width, s.v + i * kColumnGroup, tile);
        } else {
          std::fill_n(s.v + i * kColumnGroup, tile, 0.0F);
        }
      }
    }
    if (erases) {
      AdvanceTile<true>(block, plan.Kp, state, tile_rows, to_come);
    } else {
      AdvanceTile<false>(block, plan.Kp, state, tile_rows, to_come);
    }
    if (!in_place) {
      for (std::int64_t i = 0; i < rows; ++i)
        StoreRow(out + i * o_rows.token_bytes, o_rows.dtype, o_rows.step, width, s.o + i * kColumnGroup);
    }
  }
}

// All tokens of some heads, side by side because their rows lie side by side in memory.
void BlockedHeads(const ChunkPlan& plan, const RecurrenceInputs& in, const TensorView& o, const TensorView& ht,
                  const BlockedUnit& unit, std::byte* memory) {
  const RecurrenceLayout& at = plan.at;
  const std::int64_t tile = TileColumns();
  BumpAllocator allocator(memory);
  const BlockedScratch s(plan, unit.heads, allocator);
  float fold[kMostHeads];
  for (std::int64_t h = 0; h < unit.heads; ++h) {
    fold[h] = 1.0F;
    for (std::int64_t begin = unit.begin; begin < unit.end; begin += tile) {
      LoadState(state_of(in.h0, unit.sequence, unit.head + h), at.K, plan.Kp, begin, std::min(tile, unit.end - begin),
                tile, s.states + h * s.state_size + (begin - unit.begin) * plan.Kp, tile);
    }
  }
  const std::int64_t length = at.length(unit.sequence);
  const std::int64_t sweeps = 2 * unit.heads * ceil_div(unit.end - unit.begin, tile);
  RowsToCome to_come;
  for (std::int64_t first = 0; first < length; first += kRecurrenceBlock) {
    to_come.restart();
    for (std::int64_t t = first + kTokensAhead; t < std::min(first + kTokensAhead + kRecurrenceBlock, length); ++t) {
      for (std::int64_t h = unit.head; h < unit.head + unit.heads; ++h) {
        to_come.add(at.rows(in.q, unit.sequence, at.q_head(h)), t, at.K);
        to_come.add(at.rows(in.k, unit.sequence, at.q_head(h)), t, at.K);
        to_come.add(at.rows(in.v, unit.sequence, h), t, at.V);
        to_come.add(at.rows(o, unit.sequence, h), t, at.V);
      }
    }
    to_come.share(sweeps);
    for (std::int64_t h = 0; h < unit.heads; ++h)
      AdvanceBlock(plan, in, o, unit, unit.head + h, first, fold[h], s, s.states + h * s.state_size, to_come);
  }
  for (std::int64_t h = 0; h < unit.heads; ++h) {
    for (std::int64_t begin = unit.begin; begin < unit.end; begin += tile) {
      float* state = s.states + h * s.state_size + (begin - unit.begin) * plan.Kp;
      ScaleInto(fold[h], state, state, plan.Kp * tile);
      StoreState(state_of(ht, unit.sequence, unit.head + h), at.K, begin, std::min(tile, unit.end - begin), state,
                 tile);
    }
  }
}

}  // namespace qdelta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qdelta::cpu {

HWY_EXPORT(BlockedHeads);

namespace {

ChunkPlan plan_of(const Device& device, const RecurrenceForward& args) {
  return {device, args.in, {.form = Form::recurrent, .chunk = kDefaultChunk, .bf16_products = false}};
}

// How many heads a thread advances side by side: as many as divide evenly, leave enough work for all threads, and have
// states that fit the second-level cache together.
std::int64_t heads_of(const ChunkPlan& plan) {
  constexpr std::int64_t kStateBytes = std::int64_t{1} << 18;
  std::int64_t heads = plan.split ? 1 : kMostHeads;
  while (heads > 1 && (plan.at.HV % heads != 0 || plan.at.N * plan.at.HV < 4 * heads * plan.threads ||
                       heads * plan.at.K * plan.at.V * std::int64_t{sizeof(float)} > kStateBytes)) {
    heads /= 2;
  }
  return heads;
}

std::size_t scratch_bytes(const ChunkPlan& plan) {
  BumpAllocator counter(nullptr);
  (void)BlockedScratch(plan, heads_of(plan), counter);
  return counter.used();
}

}  // namespace

std::size_t recurrence_blocked_workspace(const Device& device, const RecurrenceForward& args) {
  const ChunkPlan plan = plan_of(device, args);
  return scratch_bytes(plan) * static_cast<std::size_t>(plan.threads);
}

void recurrence_blocked(const Device& device, const RecurrenceForward& args, std::span<std::byte> workspace) {
  const ChunkPlan plan = plan_of(device, args);
  const std::size_t scratch = scratch_bytes(plan);
  const std::int64_t heads = heads_of(plan);
  const auto run = HWY_DYNAMIC_DISPATCH(BlockedHeads);
  parallel_for(plan.units() / heads, plan.threads, [&](std::int64_t index, int worker) {
    const ChunkUnit first = unit_of(plan, index * heads);
    const BlockedUnit unit{.sequence = first.sequence,
                           .head = first.head,
                           .heads = heads,
                           .begin = first.group_begin * kColumnGroup,
                           .end = std::min(first.group_end * kColumnGroup, plan.at.V)};
    run(plan, args.in, args.o, args.ht, unit, workspace.data() + static_cast<std::size_t>(worker) * scratch);
  });
}

}  // namespace qdelta::cpu
#endif
