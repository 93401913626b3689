// The steps of recurrent layers, beside the products of their inputs and states.
#include "base/arch.h"
#include "bindings/bindings.h"
#include "kernels/gates/gates.h"

namespace lowbit {
namespace {

class RecurrentGates {
 public:
  RecurrentGates(Array<const float> products, Array<float> h, std::optional<Array<float>> c, int64_t hidden)
      : products_(std::move(products)), h_(std::move(h)), c_(std::move(c)), hidden_(hidden) {
    if (hidden < 1) refuse("hidden", "expected at least 1");
    rows_ = rows_of(h_, hidden, 4, "h");
    gates_ = c_ ? 4 : 3;
    products_.require(product_of({rows_, gates_, hidden}, "products") * 4, "products");
    if (c_) c_->require(h_.bytes(), "c");
  }

  void step(const Array<const float>& x, const Array<float>& out) const {
    x.require(products_.bytes(), "x");
    out.require(h_.bytes(), "out");
    const GatesArgs k{x.data(), products_.data(), h_.data(), c_ ? c_->data() : nullptr, out.data(), rows_, hidden_};
    const GatesRow& row = gates_row(active_isa());
    without_gil(rows_ * hidden_, [&] { (c_ ? row.lstm : row.gru)(k); });
  }

 private:
  Array<const float> products_;
  Array<float> h_;
  std::optional<Array<float>> c_;
  int64_t hidden_, rows_, gates_;
};

}  // namespace

void bind_recurrent(nb::module_& m) {
  nb::class_<RecurrentGates>(m, "RecurrentGates", "The gates of an LSTM or a GRU over the products of its state.")
      .def(nb::init<Array<const float>, Array<float>, std::optional<Array<float>>, int64_t>(), "products"_a, "h"_a,
           "c"_a.none(), "hidden"_a,
           "products: [rows, 4 or 3 gates, hidden], read at each step; h and c, [rows, hidden], change. c: of an LSTM.")
      .def("step", &RecurrentGates::step, "x"_a, "out"_a,
           "One step: x is added to the products, and out gets the new h.");
}

}  // namespace lowbit
