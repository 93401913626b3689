// What permutations of bytes add to AVX-512: results of halves from a table. All else is AVX-512's.
#include "kernels/fake_quant/table.h"
#include "simd/x86_vec512.h"

namespace lowbit {
extern const FakeQuantRow* const fake_quant_rows_avx512;

namespace {

template <Element E, class In>
void fake(const FakeQuantArgs& a) {
  if (!fake_by_table<Avx512Vbmi, In, false>(a))
    fake_quant_rows_avx512[static_cast<int>(E)].grouped[static_cast<int>(FakeOp::fake)](a);
}

template <Element E, class In>
void masked(const FakeQuantArgs& a) {
  if (!fake_by_table<Avx512Vbmi, In, true>(a)) fake_quant_rows_avx512[static_cast<int>(E)].masked(a);
}

template <Element E, class In>
FakeQuantRow with_tables() {
  FakeQuantRow row = fake_quant_rows_avx512[static_cast<int>(E)];
  row.grouped[static_cast<int>(FakeOp::fake)] = fake<E, In>;
  row.masked = masked<E, In>;
  return row;
}

}  // namespace

const FakeQuantRow* fake_quant_rows_vbmi();
const FakeQuantRow* fake_quant_rows_vbmi() {
  static const FakeQuantRow rows[kFakeQuantRows] = {
      fake_quant_rows_avx512[0],
      fake_quant_rows_avx512[1],
      with_tables<Element::f16, half_t>(),
      with_tables<Element::bf16, bfloat_t>(),
  };
  return rows;
}

}  // namespace lowbit
