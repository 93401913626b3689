// The only place that maps an ISA to its tables.
#include <cassert>

#include "kernels/codes/codes.h"
#include "kernels/combine/combine.h"
#include "kernels/dequantize/dequantize.h"
#include "kernels/fake_quant/fake_quant.h"
#include "kernels/pack/pack.h"
#include "kernels/pool/pool.h"
#include "kernels/quantize/quantize.h"
#include "kernels/range/range.h"

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

#define LOWBIT_DECLARE_RangeRow(isa) extern const RangeRow* const range_rows_##isa;
#define LOWBIT_CASE_RangeRow(isa) LOWBIT_CASE(range, isa)
LOWBIT_FAMILY(range, RangeRow)

#define LOWBIT_DECLARE_PackRow(isa) extern const PackRow* const pack_rows_##isa;
#define LOWBIT_CASE_PackRow(isa) LOWBIT_CASE(pack, isa)
LOWBIT_FAMILY(pack, PackRow)

#define LOWBIT_DECLARE_CombineRow(isa) extern const CombineRow* const combine_rows_##isa;
#define LOWBIT_CASE_CombineRow(isa) LOWBIT_CASE(combine, isa)
LOWBIT_FAMILY(combine, CombineRow)

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
const FakeQuantRow& fake_quant_row(Isa isa, Element in) {
  return find(fake_quant_rows(isa), kFakeQuantRows, [=](const FakeQuantRow& r) { return r.in == in; });
}
const RangeRow& range_row(Isa isa, Element in) {
  return find(range_rows(isa), kRangeRows, [=](const RangeRow& r) { return r.in == in; });
}
const PackRow& pack_row(Isa isa, int bits) {
  return find(pack_rows(isa), kPackRows, [=](const PackRow& r) { return r.bits == bits; });
}
const CombineRow& combine_row(Isa isa, CombineOp op, Code code) {
  return find(combine_rows(isa), kCombineRows, [=](const CombineRow& r) { return r.op == op && r.code == code; });
}
const CodesRow& codes_row(Isa isa, Code code) {
  return find(codes_rows(isa), kCodesRows, [=](const CodesRow& r) { return r.code == code; });
}
const PoolRow& pool_row(Isa isa, Code code) {
  return find(pool_rows(isa), kPoolRows, [=](const PoolRow& r) { return r.code == code; });
}

}  // namespace lowbit
