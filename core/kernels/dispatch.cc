// The only place that maps an ISA to its tables.
#include <cassert>

#include "kernels/binary/binary.h"
#include "kernels/codes/codes.h"
#include "kernels/combine/combine.h"
#include "kernels/dequantize/dequantize.h"
#include "kernels/dwconv/dwconv.h"
#include "kernels/fake_quant/fake_quant.h"
#include "kernels/finish/finish.h"
#include "kernels/float_dot/float_dot.h"
#include "kernels/float_groups/float_groups.h"
#include "kernels/gemm/gemm.h"
#include "kernels/groups/groups.h"
#include "kernels/pack/pack.h"
#include "kernels/pool/pool.h"
#include "kernels/probe/probe.h"
#include "kernels/quantize/quantize.h"
#include "kernels/range/range.h"
#include "kernels/sketch/sketch.h"

namespace lowbit {

#if defined(__x86_64__)
#define LOWBIT_FOR_EACH_COMPILED_ISA(X) X(scalar) X(avx2) X(avx512)
#elif defined(__aarch64__)
#define LOWBIT_FOR_EACH_COMPILED_ISA(X) X(scalar) X(neon)
#else
#define LOWBIT_FOR_EACH_COMPILED_ISA(X) X(scalar)
#endif

#define LOWBIT_CASE(family, isa) \
  case Isa::isa:                 \
    return family##_rows_##isa;
#define LOWBIT_FAMILY(family, Row)                    \
  LOWBIT_FOR_EACH_COMPILED_ISA(LOWBIT_DECLARE_##Row)  \
  const Row* family##_rows(Isa isa) {                 \
    switch (base_isa(isa)) {                          \
      LOWBIT_FOR_EACH_COMPILED_ISA(LOWBIT_CASE_##Row) \
      default:                                        \
        return nullptr;                               \
    }                                                 \
  }

#define LOWBIT_DECLARE_QuantizeRow(isa) extern const QuantizeRow* const quantize_rows_##isa;
#define LOWBIT_CASE_QuantizeRow(isa) LOWBIT_CASE(quantize, isa)
LOWBIT_FAMILY(quantize, QuantizeRow)

#define LOWBIT_DECLARE_DequantizeRow(isa) extern const DequantizeRow* const dequantize_rows_##isa;
#define LOWBIT_CASE_DequantizeRow(isa) LOWBIT_CASE(dequantize, isa)
LOWBIT_FAMILY(dequantize, DequantizeRow)

#define LOWBIT_DECLARE_FakeQuantRow(isa) extern const FakeQuantRow* const fake_quant_rows_##isa;
#define LOWBIT_CASE_FakeQuantRow(isa) LOWBIT_CASE(fake_quant, isa)
LOWBIT_FAMILY(fake_quant, FakeQuantRow)
#if defined(__x86_64__)
const FakeQuantRow* fake_quant_rows_vbmi();
#endif

#define LOWBIT_DECLARE_RangeRow(isa) extern const RangeRow* const range_rows_##isa;
#define LOWBIT_CASE_RangeRow(isa) LOWBIT_CASE(range, isa)
LOWBIT_FAMILY(range, RangeRow)

#define LOWBIT_DECLARE_SketchRow(isa) extern const SketchRow* const sketch_rows_##isa;
#define LOWBIT_CASE_SketchRow(isa) LOWBIT_CASE(sketch, isa)
LOWBIT_FAMILY(sketch, SketchRow)

#define LOWBIT_DECLARE_ProbeRow(isa) extern const ProbeRow* const probe_rows_##isa;
#define LOWBIT_CASE_ProbeRow(isa) LOWBIT_CASE(probe, isa)
LOWBIT_FAMILY(probe, ProbeRow)

#define LOWBIT_DECLARE_PackRow(isa) extern const PackRow* const pack_rows_##isa;
#define LOWBIT_CASE_PackRow(isa) LOWBIT_CASE(pack, isa)
LOWBIT_FAMILY(pack, PackRow)

#define LOWBIT_DECLARE_DwconvRow(isa) extern const DwconvRow* const dwconv_rows_##isa;
#define LOWBIT_CASE_DwconvRow(isa) LOWBIT_CASE(dwconv, isa)
LOWBIT_FAMILY(dwconv, DwconvRow)

#define LOWBIT_DECLARE_FinishRow(isa) extern const FinishRow* const finish_rows_##isa;
#define LOWBIT_CASE_FinishRow(isa) LOWBIT_CASE(finish, isa)
LOWBIT_FAMILY(finish, FinishRow)

#define LOWBIT_DECLARE_FloatDotRow(isa) extern const FloatDotRow* const float_dot_rows_##isa;
#define LOWBIT_CASE_FloatDotRow(isa) LOWBIT_CASE(float_dot, isa)
LOWBIT_FAMILY(float_dot, FloatDotRow)

#define LOWBIT_DECLARE_FloatGroupRow(isa) extern const FloatGroupRow* const float_group_rows_##isa;
#define LOWBIT_CASE_FloatGroupRow(isa) LOWBIT_CASE(float_group, isa)
LOWBIT_FAMILY(float_group, FloatGroupRow)

// Families with dot products have tables for every ISA.
#if defined(__x86_64__)
#define LOWBIT_FOR_EACH_DOT_ISA(X) X(scalar) X(avx2) X(avxvnni) X(avx512) X(vnni)
#elif defined(__aarch64__)
#define LOWBIT_FOR_EACH_DOT_ISA(X) X(scalar) X(neon) X(dotprod) X(i8mm)
#else
#define LOWBIT_FOR_EACH_DOT_ISA(X) X(scalar)
#endif

#define LOWBIT_DECLARE_GEMM(isa) extern const GemmRow* const gemm_rows_##isa;
#define LOWBIT_CASE_GEMM(isa) LOWBIT_CASE(gemm, isa)
LOWBIT_FOR_EACH_DOT_ISA(LOWBIT_DECLARE_GEMM)
const GemmRow* gemm_rows(Isa isa) {
  switch (isa) {
    LOWBIT_FOR_EACH_DOT_ISA(LOWBIT_CASE_GEMM)
    default:
      return nullptr;
  }
}

#define LOWBIT_DECLARE_GROUPS(isa) extern const GroupRow* const group_rows_##isa;
#define LOWBIT_CASE_GROUPS(isa) LOWBIT_CASE(group, isa)
#if defined(__aarch64__)
#define LOWBIT_FOR_EACH_GROUPS_ISA(X) X(scalar) X(neon) X(dotprod)
#else
#define LOWBIT_FOR_EACH_GROUPS_ISA LOWBIT_FOR_EACH_DOT_ISA
#endif
LOWBIT_FOR_EACH_GROUPS_ISA(LOWBIT_DECLARE_GROUPS)
const GroupRow* group_rows(Isa isa) {
  switch (isa == Isa::i8mm ? Isa::dotprod : isa) {  // a group is too short for smmla to pay
    LOWBIT_FOR_EACH_GROUPS_ISA(LOWBIT_CASE_GROUPS)
    default:
      return nullptr;
  }
}

#define LOWBIT_DECLARE_BinaryRow(isa) extern const BinaryRow* const binary_rows_##isa;
#define LOWBIT_CASE_BinaryRow(isa) LOWBIT_CASE(binary, isa)
LOWBIT_FAMILY(binary, BinaryRow)

#if defined(__x86_64__)
LOWBIT_DECLARE_BinaryRow(vpopcnt)
#endif
#define LOWBIT_DECLARE_CombineRow(isa) extern const CombineRow* const combine_rows_##isa;
#define LOWBIT_CASE_CombineRow(isa) LOWBIT_CASE(combine, isa)
    LOWBIT_FAMILY(combine, CombineRow)
#if defined(__x86_64__)
        const CombineRow* combine_rows_vbmi();
#endif

#define LOWBIT_DECLARE_CodesRow(isa) extern const CodesRow* const codes_rows_##isa;
#define LOWBIT_CASE_CodesRow(isa) LOWBIT_CASE(codes, isa)
LOWBIT_FAMILY(codes, CodesRow)

#define LOWBIT_DECLARE_PoolRow(isa) extern const PoolRow* const pool_rows_##isa;
#define LOWBIT_CASE_PoolRow(isa) LOWBIT_CASE(pool, isa)
LOWBIT_FAMILY(pool, PoolRow)

namespace {
template <class Row, class Matches>
const Row& find(const Row* rows, int count, Matches matches) {
  for (int i = 0; i < count; ++i)
    if (matches(rows[i])) return rows[i];
  assert(!"no such row in kernels.inc");
  __builtin_trap();
}
}  // namespace

const QuantizeRow& quantize_row(Isa isa, Element in, Code code) {
  return find(quantize_rows(isa), kQuantizeRows, [=](const QuantizeRow& r) { return r.in == in && r.code == code; });
}
const DequantizeRow& dequantize_row(Isa isa, Code code, Element out) {
  return find(dequantize_rows(isa), kDequantizeRows,
              [=](const DequantizeRow& r) { return r.code == code && r.out == out; });
}
#if defined(__x86_64__)
static bool has_vbmi() {
  static const bool has_it = isa_available(Isa::avx512) && has_feature("avx512_vbmi");
  return has_it;
}
const FakeQuantRow* fake_quant_rows_with_vbmi() { return has_vbmi() ? fake_quant_rows_vbmi() : nullptr; }
const CombineRow* combine_rows_with_vbmi() { return has_vbmi() ? combine_rows_vbmi() : nullptr; }
#else
const FakeQuantRow* fake_quant_rows_with_vbmi() { return nullptr; }
const CombineRow* combine_rows_with_vbmi() { return nullptr; }
#endif
const FakeQuantRow& fake_quant_row(Isa isa, Element in) {
  const FakeQuantRow* with_vbmi = base_isa(isa) == Isa::avx512 ? fake_quant_rows_with_vbmi() : nullptr;
  const FakeQuantRow* rows = with_vbmi != nullptr ? with_vbmi : fake_quant_rows(isa);
  return find(rows, kFakeQuantRows, [=](const FakeQuantRow& r) { return r.in == in; });
}
const RangeRow& range_row(Isa isa, Element in) {
  return find(range_rows(isa), kRangeRows, [=](const RangeRow& r) { return r.in == in; });
}
const FinishRow& finish_row(Isa isa, Result out) {
  return find(finish_rows(isa), kFinishRows, [=](const FinishRow& r) { return r.out == out; });
}
const FloatDotRow& float_dot_row(Isa isa, Element in) {
  return find(float_dot_rows(isa), kFloatDotRows, [=](const FloatDotRow& r) { return r.in == in; });
}
const FloatGroupRow& float_group_row(Isa isa, int bits) {
  return find(float_group_rows(isa), kFloatGroupRows, [=](const FloatGroupRow& r) { return r.bits == bits; });
}
const GroupRow& group_row(Isa isa, int bits) {
  return find(group_rows(isa), kGroupRows, [=](const GroupRow& r) { return r.bits == bits; });
}
const PackRow& pack_row(Isa isa, int bits) {
  return find(pack_rows(isa), kPackRows, [=](const PackRow& r) { return r.bits == bits; });
}
const DwconvRow& dwconv_row(Isa isa, Code code, int64_t kh, int64_t kw, int64_t stride) {
  return find(dwconv_rows(isa), kDwconvRows, [=](const DwconvRow& r) {  // the row for any comes last
    return r.code == code && (r.kh == 0 || (r.kh == kh && r.kw == kw && r.stride == stride));
  });
}

const BinaryRow* binary_rows_with_vpopcnt() {
#if defined(__x86_64__)
  static const bool has_it =
      isa_available(Isa::avx512) && has_feature("avx512_vpopcntdq") && has_feature("avx512_bitalg");
  return has_it ? binary_rows_vpopcnt : nullptr;
#else
  return nullptr;
#endif
}
const BinaryRow& binary_row(Isa isa) {
  const BinaryRow* with_vpopcnt = base_isa(isa) == Isa::avx512 ? binary_rows_with_vpopcnt() : nullptr;
  return with_vpopcnt != nullptr ? *with_vpopcnt : *binary_rows(isa);
}
const CombineRow& combine_row(Isa isa, CombineOp op, Code code) {
  const CombineRow* with_vbmi = base_isa(isa) == Isa::avx512 ? combine_rows_with_vbmi() : nullptr;
  return find(with_vbmi != nullptr ? with_vbmi : combine_rows(isa), kCombineRows,
              [=](const CombineRow& r) { return r.op == op && r.code == code; });
}
const CodesRow& codes_row(Isa isa, Code code) {
  return find(codes_rows(isa), kCodesRows, [=](const CodesRow& r) { return r.code == code; });
}
const PoolRow& pool_row(Isa isa, Code code) {
  return find(pool_rows(isa), kPoolRows, [=](const PoolRow& r) { return r.code == code; });
}

}  // namespace lowbit
