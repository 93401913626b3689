// What permutations of bytes add to AVX-512: sums by table. All else is AVX-512's.
#include "kernels/combine/shortcut.h"
#include "simd/x86_bytes512.h"

namespace lowbit {
extern const CombineRow* const combine_rows_avx512;

namespace {

template <class C>
CombineRow with_tables(CombineRow row) {
  row.shortcut = combine_shortcut<Avx512Vbmi, Avx512VbmiBytes, CombineOp::add, C>;
  row.has_tables = true;
  return row;
}

}  // namespace

const CombineRow* combine_rows_vbmi();
const CombineRow* combine_rows_vbmi() {
  static const CombineRow rows[kCombineRows] = {
      with_tables<int8_t>(combine_rows_avx512[0]),
      with_tables<uint8_t>(combine_rows_avx512[1]),
      combine_rows_avx512[2],
      combine_rows_avx512[3],
  };
  return rows;
}

}  // namespace lowbit
