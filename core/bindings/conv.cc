// Convolutions of codes, channels last: windows, weights and plans.
#include "drivers/conv/conv.h"

#include "bindings/bindings.h"
#include "bindings/epilogue.h"

namespace lowbit {
namespace {

void make_window(Window* self, std::array<int64_t, 4> image, std::array<int64_t, 2> kernel,
                 std::array<int64_t, 2> stride, std::array<int64_t, 4> padding, std::array<int64_t, 2> dilation,
                 int64_t groups) {
  const Window w{image[0],   image[1],   image[2],   image[3],   kernel[0],   kernel[1],   stride[0], stride[1],
                 padding[0], padding[1], padding[2], padding[3], dilation[0], dilation[1], groups};
  product_of(image, "image");
  for (const int64_t n : padding) product_of({n}, "padding");
  if (groups < 1 || image[3] % groups != 0) throw nb::value_error("groups: expected a divisor of the channels");
  for (const int axis : {0, 1}) {
    if (kernel[axis] < 1) throw nb::value_error("kernel: must be positive");
    if (stride[axis] < 1 || dilation[axis] < 1) throw nb::value_error("stride, dilation: must be positive");
    product_of({dilation[axis], kernel[axis]}, "dilation");
    product_of({image[axis + 1] + padding[axis] + padding[axis + 2], stride[axis]}, "padding");
    if (image[axis + 1] + padding[axis] + padding[axis + 2] <= dilation[axis] * (kernel[axis] - 1))
      throw nb::value_error("kernel: larger than the padded image");
  }
  product_of({kernel[0], kernel[1], image[3]}, "kernel");
  product_of({image[0], w.out_height(), w.out_width()}, "image");
  new (self) Window(w);
}

// One GEMM per group, whose rows are gathered from the image.
class ConvPlan {
 public:
  ConvPlan(std::vector<std::shared_ptr<PackedMatrix>> weights, const Window& window, Code code, int32_t zero,
           std::vector<std::shared_ptr<EpilogueSpec>> epilogues)
      : weights_(std::move(weights)),
        window_(window),
        is_signed_(byte_code(code) == Code::s8),
        zero_(zero),
        epilogues_(std::move(epilogues)) {
    if (weights_.size() != static_cast<size_t>(window.groups) || epilogues_.size() != weights_.size())
      throw nb::value_error("weights, epilogues: expected one per group");
    for (size_t i = 0; i < weights_.size(); ++i) {
      const PackedMatrix& w = *weights_[i];
      const int64_t run = window.kernel_w * channels();
      if (w.k % window.kernel_h != 0 || w.k / window.kernel_h < run || w.n != weights_[0]->n)
        throw nb::value_error("weights: their depth is not that of the window");
      item_ = epilogues_[i]->item(w.k);
      if (item_ != epilogues_[0]->item(w.k)) throw nb::value_error("epilogues: results of several types");
    }
    outputs_ = window.groups * weights_[0]->n;
    product_of({window.pixels(), outputs_}, "out");
  }

  void run(const Array<const void>& x, const Array<void>& out) const {
    x.require(window_.inputs(), "x"), out.require(window_.pixels() * outputs_ * item_, "out");
    const int64_t columns = outputs_ / window_.groups;
    without_gil_for_product(window_.pixels(), outputs_, weights_[0]->k, [&] {
      for (int64_t i = 0; i < window_.groups; ++i) {
        Epilogue e = epilogues_[i]->epilogue(1, columns);
        e.scale_per_row = false;  // one for all pixels
        convolve(shape(i), static_cast<const uint8_t*>(x.data()), is_signed_, zero_, *weights_[i], e,
                 static_cast<char*>(out.data()) + i * columns * item_, outputs_);
      }
    });
  }
  int64_t workspace_bytes() const {
    const PackedMatrix& w = *weights_[0];
    return gemm_workspace(window_.pixels(), w.n, w.k, epilogues_[0]->wide);
  }

 private:
  int64_t channels() const { return window_.channels / window_.groups; }
  ConvShape shape(int64_t group) const {
    const int64_t c = channels(), line = weights_[group]->k / window_.kernel_h;
    return {window_, window_.out_height(), window_.out_width(), group * c, c, line};
  }

  std::vector<std::shared_ptr<PackedMatrix>> weights_;
  Window window_;
  bool is_signed_;
  int32_t zero_;
  std::vector<std::shared_ptr<EpilogueSpec>> epilogues_;
  int64_t outputs_ = 0, item_ = 0;
};

const Window& depthwise(const Window& w) {
  if (w.channels < 1) throw nb::value_error("channels: must be positive");
  if (w.kernel_h > kDwconvMaxTaps / w.kernel_w) throw nb::value_error("kernel: too many taps");
  return w;
}

std::unique_ptr<DwconvWeights> depthwise_weights(const Window& window, Code x_code, const Array<const void>& w,
                                                 Code w_code, const std::optional<Array<const int32_t>>& zero) {
  w.require(depthwise(window).channels * window.taps(), "w");
  require(zero, window.channels * 4, "w_zero_point");
  return std::make_unique<DwconvWeights>(active_isa(), byte_code(x_code), window, byte_code(w_code), w.data(),
                                         data_of(zero));
}

class DepthwiseConvPlan {
 public:
  DepthwiseConvPlan(std::shared_ptr<DwconvWeights> weights, const Window& window, int32_t zero,
                    std::shared_ptr<EpilogueSpec> epilogue)
      : weights_(std::move(weights)), window_(depthwise(window)), zero_(zero), epilogue_(std::move(epilogue)) {
    if (!weights_->serves(window_)) throw nb::value_error("window: not the one the weights were prepared for");
    product_of({window.pixels(), window.channels}, "window");
  }

  void run(const Array<const void>& x, const Array<void>& out) const {
    const int64_t outputs = window_.pixels() * window_.channels;
    x.require(window_.inputs(), "x");
    out.require(outputs * result_bytes(epilogue_->result), "out");
    Epilogue e = epilogue_->epilogue(1, window_.channels);
    e.scale_per_row = false;  // one for all pixels
    without_gil_for_product(outputs, window_.kernel_h, window_.kernel_w,
                            [&] { dwconv(window_, *weights_, x.data(), zero_, e, out.data()); });
  }
  int64_t workspace_bytes() const { return dwconv_workspace(window_, *weights_); }

 private:
  std::shared_ptr<DwconvWeights> weights_;
  Window window_;
  int32_t zero_;
  std::shared_ptr<EpilogueSpec> epilogue_;
};

}  // namespace

void bind_conv(nb::module_& m) {
  using Pair = std::array<int64_t, 2>;
  nb::class_<Window>(m, "Window", "A kernel that passes over images [batch, height, width, channels].")
      .def("__init__", &make_window, "image"_a, "kernel"_a, "stride"_a = Pair{1, 1},
           "padding"_a = std::array<int64_t, 4>{}, "dilation"_a = Pair{1, 1}, "groups"_a = 1,
           "kernel, stride, dilation: (height, width); padding: (top, left, bottom, right).")
      .def_prop_ro("out_height", &Window::out_height)
      .def_prop_ro("out_width", &Window::out_width);
  nb::class_<ConvPlan>(m, "ConvPlan", "A convolution of codes, with an epilogue for each group.")
      .def(nb::init<std::vector<std::shared_ptr<PackedMatrix>>, const Window&, Code, int32_t,
                    std::vector<std::shared_ptr<EpilogueSpec>>>(),
           "weights"_a, "window"_a, "code"_a, "zero_point"_a, "epilogues"_a,
           "weights: one matrix [kernel * channels, outputs] per group; code, zero_point: of x.")
      .def("run", &ConvPlan::run, "x"_a, "out"_a, "out: [batch, height, width, outputs].")
      .def_prop_ro("workspace_bytes", &ConvPlan::workspace_bytes);
  nb::class_<DwconvWeights>(m, "DepthwiseWeights",
                            "Weights [channels, kh, kw] prepared for one window, type of x and ISA.")
      .def(nb::new_(&depthwise_weights), "window"_a, "x_code"_a, "w"_a, "w_code"_a, "w_zero_point"_a.none())
      .def_prop_ro("nbytes", &DwconvWeights::nbytes);
  nb::class_<DepthwiseConvPlan>(m, "DepthwiseConvPlan", "A convolution with one filter per channel, and an epilogue.")
      .def(nb::init<std::shared_ptr<DwconvWeights>, const Window&, int32_t, std::shared_ptr<EpilogueSpec>>(),
           "weights"_a, "window"_a, "zero_point"_a, "epilogue"_a)
      .def("run", &DepthwiseConvPlan::run, "x"_a, "out"_a)
      .def_prop_ro("workspace_bytes", &DepthwiseConvPlan::workspace_bytes);
}

}  // namespace lowbit
