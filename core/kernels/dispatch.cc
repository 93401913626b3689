// The only place that maps an instruction set to kernels.
#include <tuple>

#include "kernels/add_mul/add_mul.h"
#include "kernels/cholesky/cholesky.h"
#include "kernels/clamp_lookup/clamp_lookup.h"
#include "kernels/dequantize/dequantize.h"
#include "kernels/dwconv/dwconv.h"
#include "kernels/epilogue/epilogue.h"
#include "kernels/error_feedback/error_feedback.h"
#include "kernels/fake_quant/fake_quant.h"
#include "kernels/gates/gates.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm_binary/gemm_binary.h"
#include "kernels/gemm_float/gemm_float.h"
#include "kernels/gemm_float_groupwise/gemm_float_groupwise.h"
#include "kernels/gemm_groupwise/gemm_groupwise.h"
#include "kernels/pack/pack.h"
#include "kernels/peak/peak.h"
#include "kernels/pool/pool.h"
#include "kernels/quantize/quantize.h"
#include "kernels/range/range.h"
#include "kernels/scale_search/scale_search.h"
#include "kernels/sketch/sketch.h"

namespace lowbit {
namespace {

// The instruction sets that families.inc names, worst first.
#if defined(__x86_64__)
#define BASE(X, family) X(family, scalar) X(family, avx2) X(family, avx512)
#define DOT(X, family) X(family, scalar) X(family, avx2) X(family, avxvnni) X(family, avx512) X(family, vnni)
#define GROUPWISE DOT
#define POPCOUNT(X, family) X(family, scalar) X(family, avx2) X(family, vpopcnt)
#define BYTES(X, family) BASE(X, family) X(family, vbmi)
#elif defined(__aarch64__)
#define BASE(X, family) X(family, scalar) X(family, neon)
#define DOT(X, family) X(family, scalar) X(family, neon) X(family, dotprod) X(family, i8mm)
#define GROUPWISE(X, family) X(family, scalar) X(family, neon) X(family, dotprod)  // groups are too short for smmla
#define POPCOUNT BASE
#define BYTES BASE
#else
#define BASE(X, family) X(family, scalar)
#define DOT BASE
#define GROUPWISE BASE
#define POPCOUNT BASE
#define BYTES BASE
#endif

template <class Row>
struct IsaTable {
  Isa isa;
  KernelTable<Row> rows;
};

template <class Row, size_t N>
KernelTable<Row> best(const IsaTable<Row> (&tables)[N], Isa isa, bool extensions) {
  KernelTable<Row> found = tables[0].rows;
  for (const IsaTable<Row>& table : tables) {
    // An ISA includes those before it, but AVX-512 has tables of its own wherever AVX-VNNI has.
    const bool is_extension = static_cast<int>(table.isa) >= kIsaCount;
    if (is_extension ? extensions && extends(table.isa, isa) : table.isa <= isa) found = table.rows;
  }
  return found;
}

#define NAMED(type, ...)                                  \
  std::string name(type value) {                          \
    static constexpr const char* names[] = {__VA_ARGS__}; \
    return names[static_cast<int>(value)];                \
  }
std::string name(Element value) { return kElementNames[static_cast<int>(value)]; }
std::string name(Code value) { return kCodeNames[static_cast<int>(value)]; }
NAMED(Result, "s32", "f32", "f16", "bf16", "s8", "u8")
NAMED(GemmFit, "any", "pairs", "fours")
NAMED(AddMulOp, "add", "mul")
std::string name(int value) { return std::to_string(value); }

template <class... Key>
std::string names(const std::tuple<Key...>& keys) {
  std::string all;
  const auto add = [&](const auto& key) {
    if (!all.empty()) all += ' ';
    all += name(key);
  };
  std::apply([&](const Key&... key) { (add(key), ...); }, keys);
  return all;
}

template <class Row>
const char* method(const Row& r) {
  if constexpr (requires { r.method; }) return r.method;
  return "";
}

template <class Row>
void list(std::vector<KernelRow>& all, const char* family, Isa isa, KernelTable<Row> rows) {
  if (!isa_available(isa)) return;
  for (const Row& r : rows) all.push_back({family, isa_name(isa), names(keys(r)), method(r)});
}

// The row with these keys. There is one: drivers ask for what kernels.inc lists.
template <class Row, class... Key>
const Row& find(KernelTable<Row> rows, Key... key) {
  for (const Row& r : rows)
    if (keys(r) == std::tuple(key...)) return r;
  __builtin_trap();
}

}  // namespace

#define TABLE(family, isa) {Isa::isa, family##_rows_##isa},
#define FAMILY(family, Row, isas, keys_of, computes)                             \
  static auto keys([[maybe_unused]] const Row& r) { return std::tuple keys_of; } \
  KernelTable<Row> family##_rows(Isa isa, bool extensions) {                     \
    const IsaTable<Row> tables[] = {isas(TABLE, family)};                        \
    return best(tables, isa, extensions);                                        \
  }
#include "kernels/families.inc"
#undef FAMILY

std::vector<KernelRow> kernel_rows() {
  std::vector<KernelRow> all;
#define LIST(family, isa) list(all, #family, Isa::isa, family##_rows_##isa);
#define FAMILY(family, Row, isas, keys, computes) isas(LIST, family)
#include "kernels/families.inc"
#undef FAMILY
  return all;
}

const QuantizeRow& quantize_row(Isa isa, Element in, Code code) { return find(quantize_rows(isa), in, code); }
const DequantizeRow& dequantize_row(Isa isa, Code code, Element out) { return find(dequantize_rows(isa), code, out); }
const FakeQuantRow& fake_quant_row(Isa isa, Element in) { return find(fake_quant_rows(isa), in); }
const RangeRow& range_row(Isa isa, Element in) { return find(range_rows(isa), in); }
const PackRow& pack_row(Isa isa, int bits) { return find(pack_rows(isa), bits); }
const GroupwiseRow& gemm_groupwise_row(Isa isa, int bits) { return find(gemm_groupwise_rows(isa), bits); }
const GemmFloatRow& gemm_float_row(Isa isa, Element in) { return find(gemm_float_rows(isa), in); }
const FloatGroupwiseRow& gemm_float_groupwise_row(Isa isa, int bits) {
  return find(gemm_float_groupwise_rows(isa), bits);
}
const GatesRow& gates_row(Isa isa) { return gates_rows(isa).front(); }
const ScaleSearchRow& scale_search_row(Isa isa) { return scale_search_rows(isa).front(); }
const FeedbackRow& error_feedback_row(Isa isa) { return error_feedback_rows(isa).front(); }
const CholeskyRow& cholesky_row(Isa isa) { return cholesky_rows(isa).front(); }
const BinaryRow& gemm_binary_row(Isa isa) { return gemm_binary_rows(isa).front(); }
const EpilogueRow& epilogue_row(Isa isa, Result out) { return find(epilogue_rows(isa), out); }
const AddMulRow& add_mul_row(Isa isa, AddMulOp op, Code code) { return find(add_mul_rows(isa), op, code); }
const ClampLookupRow& clamp_lookup_row(Isa isa, Code code) { return find(clamp_lookup_rows(isa), code); }
const PoolRow& pool_row(Isa isa, Code code) { return find(pool_rows(isa), code); }
const DwconvRow& dwconv_row(Isa isa, Code code, int64_t kh, int64_t kw, int64_t stride) {
  const KernelTable<DwconvRow> rows = dwconv_rows(isa);
  for (const DwconvRow& r : rows)
    if (keys(r) == std::tuple(code, kh, kw, stride)) return r;
  return find(rows, code, 0, 0, 0);  // the row for any filter
}

}  // namespace lowbit
