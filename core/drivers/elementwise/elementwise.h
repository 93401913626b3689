// Element-wise operations on whole arrays. They are cut into chunks that do not depend on the number of threads, each
// chunk into segments; a segment is one kernel call.
#pragma once
#include "base/granularity.h"
#include "base/types.h"
#include "kernels/logarithm/logarithm.h"

namespace lowbit {

// How numbers become codes. Scales are f32, or f64 for f64 data; zero may be null (all 0).
struct Affine {
  Code code;
  const void* scale;
  const int32_t* zero;
  int32_t qmin, qmax;
};

// -1, or the first parameter outside the contract's bounds: scale i as i, zero point i as -2 - i.
int64_t invalid_parameter(const Affine& affine, bool is_f64, int64_t scales);

// The index of the first NaN or Inf, or -1.
int64_t first_nonfinite(const void* x, Element element, int64_t n);

void quantize(const Granularity& layout, const Affine& affine, const void* x, Element in, void* q);
void dequantize(const Granularity& layout, const Affine& affine, const void* q, void* y, Element out);

// The same for logarithmic codes: s8, s16 and packed s4, s2.
template <class T>
void log_quantize(const Granularity& layout, const LogTable<T>& table, Code code, const T* scale, const void* x,
                  Element in, void* q);
template <class T>
void log_dequantize(const Granularity& layout, const LogTable<T>& table, Code code, const T* scale, const void* q,
                    void* y, Element out);

// Elements [begin, end) only, on the calling thread, which holds an FpEnvironment. y is where element `begin` goes;
// `begin` is at a whole byte of q.
void dequantize_part(const Granularity& layout, const Affine& affine, const void* q, int64_t begin, int64_t end,
                     void* y, Element out);
template <class T>
void log_dequantize_part(const Granularity& layout, const LogTable<T>& table, Code code, const T* scale, const void* q,
                         int64_t begin, int64_t end, void* y, Element out);

// Per scale: least and greatest value (compute type), +Inf and -Inf where there is none. Returns the number of NaN.
int64_t range(const Granularity& layout, const void* x, Element in, void* lo, void* hi);

// Mean of |x| per run of `length` consecutive elements, at least one, summed as range.h says.
void mean_abs(const void* x, Element in, int64_t length, int64_t count, double* out);

// Parameters found in the data, and codes under them. A scale without elements is 1, as that of zeros alone is.
struct DynamicArgs {
  Code code;
  int32_t qmin, qmax;
  int32_t divisor;  // symmetric: max|x| / divisor; 0: asymmetric
  void* scale;      // out
  int32_t* zero;    // out; null where symmetric
};
struct DynamicResult {
  int64_t nan = 0;        // NaN seen
  int64_t bad_scale = 0;  // scales outside the contract's bounds (an Inf in the data ends here)
};
// Whether x is read once: groups that are contiguous and start on whole bytes.
bool fused_groups_fit(const Granularity& layout, Code code);
// Reads x twice unless fused_groups_fit and the codes include 0; then NaN, Inf or a range too wide end the call after
// the first read. workspace: dynamic_workspace bytes. A zero point of symmetric codes is 0, or the nearest code.
int64_t dynamic_workspace(const Granularity& layout, Element in);
DynamicResult quantize_from_data(const Granularity& layout, const DynamicArgs& args, const void* x, Element in, void* q,
                                 void* workspace);

// One code width per channel: channel c is x[c * length, (c + 1) * length), stored at q + offset[c].
struct MixedArgs {
  int64_t channels, length;
  const Code* code;
  const int64_t* offset;
  const void* scale;
  const int32_t* zero;  // may be null
  const int32_t* qmin;
  const int32_t* qmax;
};
// Channels begin at any byte, and two-byte codes must not be touched at an odd one: those are copied.
inline bool is_misaligned(Code code, const void* q) {
  return code_bits(code) == 16 && reinterpret_cast<uintptr_t>(q) % 2 != 0;
}
void quantize_mixed(const MixedArgs& args, const void* x, Element in, void* q);
void dequantize_mixed(const MixedArgs& args, const void* q, void* y, Element out);

// Sub-byte codes, one per byte <-> dense.
void pack(int bits, const uint8_t* codes, int64_t n, uint8_t* bytes);
void unpack(int bits, bool is_signed, const uint8_t* bytes, int64_t n, uint8_t* codes);

}  // namespace lowbit
