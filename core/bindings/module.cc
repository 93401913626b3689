// lowbit._core: the native kernels. Types and shapes are checked by the Python layer; sizes are checked once more here.
#include "bindings/bindings.h"

NB_MODULE(_core, m) {
  using namespace lowbit;
  nanobind::set_leak_warnings(false);  // a module that keeps params alive is no leak, and no user's business
  m.doc() = "Native kernels of lowbit. Use the functions of the lowbit package instead.";
  bind_errors(m);
  bind_enums(m);
  bind_granularity(m);
  bind_quantize(m);
  bind_dynamic(m);
  bind_fake_quantize(m);
  bind_range(m);
  bind_pack(m);
  bind_epilogue(m);
  bind_gemm(m);
  bind_linear(m);
  bind_conv(m);
  bind_elementwise(m);
  bind_binary(m);
  bind_schedule(m);
  bind_sketch(m);
  bind_hardware(m);
}
