// Integer GEMM: packed weights, plans and schedules.
#include "drivers/gemm/gemm.h"

#include "base/cpu_model.h"
#include "bindings/bindings.h"
#include "bindings/epilogue.h"
#include "drivers/conv/conv.h"
#include "drivers/gemm/groups.h"
#include "drivers/gemm/probe.h"
#include "drivers/gemm/schedule.h"

namespace lowbit {
namespace {

using ByteCodes = std::variant<Array<const int8_t>, Array<const uint8_t>>;

// Rows and columns of an array of bytes with two dimensions.
std::array<int64_t, 2> matrix_of(const Buffer& array, const char* name) {
  const Py_buffer& v = array.view();
  if (v.ndim != 2 || v.itemsize != 1) refuse(name, "expected a matrix of bytes");
  product_of({v.shape[0], v.shape[1]}, name);
  return {v.shape[0], v.shape[1]};
}

std::unique_ptr<PackedMatrix> pack_matrix(const ByteCodes& codes, bool transposed,
                                          const std::optional<Array<const int32_t>>& zero) {
  const bool is_signed = codes.index() == 0;
  const Buffer& b = is_signed ? static_cast<const Buffer&>(std::get<0>(codes)) : std::get<1>(codes);
  const auto [rows, columns] = matrix_of(b, "codes");
  const int64_t k = transposed ? columns : rows, n = transposed ? rows : columns;
  const int64_t zeros = zero ? (is_many(*zero, 4, n, "zero_point") ? n : 1) : 0;
  const GilReleased released;
  return std::make_unique<PackedMatrix>(b.as<uint8_t>(), is_signed, k, n, transposed ? 1 : n, transposed ? k : 1,
                                        data_of(zero), zeros);
}

std::unique_ptr<PackedGroups> pack_groups(const Array<const uint8_t>& codes, int bits, int64_t block,
                                          const Array<const float>& scale,
                                          const std::optional<Array<const uint8_t>>& zero, int32_t zero_all) {
  if (bits != 4 && bits != 2) throw nb::value_error("bits: expected 4 or 2");
  const auto [n, k] = matrix_of(codes, "codes");
  block = block_of(block);
  const int64_t groups = (k + block - 1) / block;
  scale.require(4 * n * groups, "scale");
  require(zero, n * groups, "zero_point");
  const GilReleased released;
  return std::make_unique<PackedGroups>(codes.data(), k, n, bits, block, scale.data(), data_of(zero), zero_all);
}

template <class Packed>
void unpack_of(const Packed& packed, const Array<void>& out) {
  out.require(packed.k * packed.n, "out");
  const GilReleased released;
  packed.unpack(static_cast<uint8_t*>(out.data()));
}

int64_t workspace_of(int64_t m, int64_t n, int64_t k, bool wide) {
  check_product(m, n, k);
  return gemm_workspace(m, n, k, wide);
}

class GemmPlan {
 public:
  GemmPlan(std::shared_ptr<PackedMatrix> b, Code code, Array<const int32_t> zero,
           std::shared_ptr<EpilogueSpec> epilogue)
      : b_(std::move(b)),
        is_signed_(byte_code(code) == Code::s8),
        zero_(std::move(zero)),
        epilogue_(std::move(epilogue)) {}

  void run(const Array<const void>& a, const Array<void>& out) const {
    const int64_t m = rows_of(a, b_->k, 1, "a");
    out.require(product_of({m, b_->n}, "out") * epilogue_->item(b_->k), "out");
    CodeRows rows{};
    rows.rows = m, rows.is_signed = is_signed_, rows.zero = zero_.data();
    rows.zero_per_row = is_many(zero_, 4, m, "a_zero_point");
    rows.codes = static_cast<const uint8_t*>(a.data()), rows.stride = b_->k;
    const Epilogue e = epilogue_->epilogue(m, b_->n);
    without_gil_for_product(m, b_->n, b_->k, [&] { gemm(rows, *b_, e, out.data(), b_->n); });
  }
  int64_t workspace_bytes(int64_t m) const { return workspace_of(m, b_->n, b_->k, epilogue_->wide); }

 private:
  std::shared_ptr<PackedMatrix> b_;
  bool is_signed_;
  Array<const int32_t> zero_;
  std::shared_ptr<EpilogueSpec> epilogue_;
};

class GroupGemmPlan {
 public:
  GroupGemmPlan(std::shared_ptr<PackedGroups> b, std::shared_ptr<EpilogueSpec> epilogue)
      : b_(std::move(b)), epilogue_(std::move(epilogue)), floats_(epilogue_->float_epilogue(b_->n)) {}

  void run(const Array<const int8_t>& a, const Array<const float>& a_scale, const Array<void>& out) const {
    const int64_t m = rows_of(a, b_->k, 1, "a");
    const bool per_group = a_scale.size() != m;
    if (per_group) a_scale.require(4 * m * b_->groups, "a_scale");
    out.require(product_of({m, b_->n}, "out") * result_bytes(floats_.result), "out");
    without_gil_for_product(m, b_->n, b_->k,
                            [&] { group_matmul(a.data(), m, a_scale.data(), per_group, *b_, floats_, out.data()); });
  }
  int64_t workspace_bytes(int64_t m) const {
    check_product(m, b_->n, b_->k);
    return group_matmul_workspace(*b_, m);
  }

 private:
  std::shared_ptr<PackedGroups> b_;
  std::shared_ptr<EpilogueSpec> epilogue_;
  Epilogue floats_;
};

GroupSizes sizes_of(int64_t m, int64_t n, int64_t k, int bits, int64_t block) {
  if (bits != 4 && bits != 2) throw nb::value_error("bits: expected 4 or 2");
  check_product(m, n, k);
  return GroupSizes(k, n, bits, block_of(block));
}

void transpose_of(const Array<const void>& from, const Array<void>& to) {
  const Py_buffer& v = from.view();
  if (v.ndim != 3) throw nb::value_error("from: expected [batch, rows, columns]");
  const int64_t item = v.itemsize;
  if (item != 1 && item != 2 && item != 4 && item != 8) throw nb::value_error("from: expected 1, 2, 4 or 8 bytes");
  to.require(product_of({v.shape[0], v.shape[1], v.shape[2]}, "from") * item, "to");
  without_gil(from.bytes(), [&] { transpose(from.data(), to.data(), v.shape[0], v.shape[1], v.shape[2], item); });
}

void bind_weights(nb::module_& m) {
  nb::class_<PackedMatrix>(m, "PackedMatrix", "The right side of a GEMM, [k, n], in the order of the kernels.")
      .def(nb::new_(&pack_matrix), "codes"_a, "transposed"_a = false, "zero_point"_a.none() = nb::none(),
           "codes: [k, n], or [n, k] if transposed. zero_point: one, or one per column.")
      .def_ro("k", &PackedMatrix::k)
      .def_ro("n", &PackedMatrix::n)
      .def_prop_ro(
          "fits", [](const PackedMatrix& b) { return 1 << b.kernel(255); },
          "How many products at a time fit 16 bits, whatever the codes on the left: 1, 2 or 4.")
      .def_prop_ro("nbytes", &PackedMatrix::nbytes)
      .def("unpack", &unpack_of<PackedMatrix>, "out"_a, "Writes the codes, [n, k], as they were given.")
      .def_static(
          "bytes_for",
          [](int64_t k, int64_t n) {
            product_of({k, n}, "k, n");
            return PackedMatrix::bytes_for(k, n);
          },
          "k"_a, "n"_a, "nbytes of a matrix of this size.");
  nb::class_<PackedGroups>(m, "PackedGroups", "Weights of 4 or 2 bits in groups, in the order of the kernels.")
      .def(nb::new_(&pack_groups), "codes"_a, "bits"_a, "block"_a, "scale"_a, "zero_point"_a.none(), "zero_all"_a,
           "codes: [n, k], one per byte, from 0 on; scale: [n, groups]; zero_point: likewise, or zero_all for all.")
      .def_ro("k", &PackedGroups::k)
      .def_ro("n", &PackedGroups::n)
      .def_ro("bits", &PackedGroups::bits)
      .def_prop_ro("nbytes", &PackedGroups::nbytes)
      .def("unpack", &unpack_of<PackedGroups>, "out"_a, "Writes the codes, [n, k], one per byte, as they were given.");
}

void bind_limits(nb::module_& m) {
  const nb::call_guard<GilReleased> gil_released;
  m.def("dot_limit", &dot_limit, gil_released,
        "Measured operations per second of 8-bit dot products on one thread, arithmetic alone; 0 where unknown.");
  m.def("fma_limit", &fma_limit, gil_released,
        "Measured operations per second of float32 multiply-adds on one thread, arithmetic alone.");
  m.def(
      "read_limit",
      [](int64_t bytes, double seconds) {
        if (bytes < 4096 || !(seconds > 0)) throw nb::value_error("bytes: expected at least 4096");
        const GilReleased released;
        return read_limit(bytes, seconds);
      },
      "bytes"_a, "seconds"_a, "Bytes per second of repeated reads of `bytes` on one thread, the best of several runs.");
}

GemmSchedule int8_schedule(int64_t m, int64_t n, int64_t k, int64_t threads) {
  product_of({m, n, k}, "m, n, k");
  if (m < 1 || n < 1 || k < 1 || threads < 1) throw InvalidProblem("m, n, k, threads: expected at least 1 each");
  GemmProblem p{};
  p.m = m, p.n = n, p.k = k, p.threads = threads, p.kernel = gemm_rows(active_isa()).data();
  p.quads = PackedMatrix::quads_of(k), p.k_block = PackedMatrix::k_block_of(p.quads, cpu_model());
  p.a_is_signed = true, p.a_stride = k, p.result = Result::f32, p.out_stride = n;
  return schedule_gemm(p, cpu_model());
}

// The schedule of a matrix product, to read: `lowbit tune --explain`.
void bind_schedule(nb::module_& m) {
  nb::class_<CpuModel>(m, "CpuModel", "What schedules assume of this CPU. Sizes are bytes; 0: not known.")
      .def_ro("l1", &CpuModel::l1)
      .def_ro("l2", &CpuModel::l2)
      .def_ro("l3", &CpuModel::l3)
      .def_ro("line", &CpuModel::line)
      .def_ro("dot_ports", &CpuModel::dot_ports, "Full-width dot products that start per cycle.")
      .def_ro("l1_sets", &CpuModel::l1_sets)
      .def_ro("l1_written_ways", &CpuModel::l1_written_ways)
      .def_ro("task_rows", &CpuModel::task_rows)
      .def_ro("task_panels", &CpuModel::task_panels)
      .def_ro("k_block", &CpuModel::k_block, "Quads of k.")
      .def_ro("few_rows", &CpuModel::few_rows)
      .def_ro("short_k", &CpuModel::short_k, "Quads of k.")
      .def_ro("thread_work", &CpuModel::thread_work, "Multiply-adds that are worth a thread.")
      .def_ro("shared_b", &CpuModel::shared_b)
      .def_ro("staging", &CpuModel::staging);
  m.def("cpu_model", &cpu_model, nb::rv_policy::reference, "The model of this CPU.");

  bind_enum<TileOrder>(m, "TileOrder", "What consecutive tasks share.", {"by_columns", "by_rows"});
  bind_enum<RowAccess>(m, "RowAccess", "Where the micro-kernel reads the rows of a.",
                       {"in_place", "packed_per_task", "packed_once", "image_lines"});
  nb::class_<GemmSchedule>(m, "GemmSchedule", "How a matrix product is cut into tasks.")
      .def_prop_ro("kernel", [](const GemmSchedule& s) { return std::string(s.problem.kernel->method); })
      .def_prop_ro("tile_rows", [](const GemmSchedule& s) { return s.problem.kernel->rows; })
      .def_ro("threads", &GemmSchedule::threads, "Threads that the work is worth.")
      .def_ro("order", &GemmSchedule::order)
      .def_ro("row_tasks", &GemmSchedule::row_tasks)
      .def_ro("panel_tasks", &GemmSchedule::panel_tasks)
      .def_ro("task_rows", &GemmSchedule::task_rows)
      .def_ro("task_panels", &GemmSchedule::task_panels)
      .def_prop_ro("panel_columns", [](const GemmSchedule&) { return kGemmCols; })
      .def_prop_ro(
          "k_block", [](const GemmSchedule& s) { return s.problem.k_block * 4; }, "Elements of k.")
      .def_prop_ro("k_blocks", [](const GemmSchedule& s) { return ceil_div(s.problem.quads, s.problem.k_block); })
      .def_ro("rows", &GemmSchedule::rows)
      .def_ro("packed_stride", &GemmSchedule::packed_stride)
      .def_ro("panels_at_once", &GemmSchedule::panels_at_once)
      .def_ro("rows_per_call", &GemmSchedule::rows_per_call)
      .def_ro("paired", &GemmSchedule::paired, "Whether the micro-kernel takes two panels at a time.")
      .def_ro("in_place", &GemmSchedule::in_place, "Whether accumulators are the result.")
      .def_prop_ro("scratch_bytes", [](const GemmSchedule& s) { return s.scratch.bytes(); });
  m.def("int8_schedule", &int8_schedule, "m"_a, "n"_a, "k"_a, "threads"_a,
        "The schedule of a linear layer with int8 weights: s8 rows [m, k] by weights [n, k] to f32.");
}

}  // namespace

void bind_gemm(nb::module_& m) {
  bind_weights(m);
  bind_limits(m);
  bind_schedule(m);
  nb::class_<GemmPlan>(m, "GemmPlan", "Codes a [..., k] times packed weights, with an epilogue.")
      .def(nb::init<std::shared_ptr<PackedMatrix>, Code, Array<const int32_t>, std::shared_ptr<EpilogueSpec>>(), "b"_a,
           "code"_a, "zero_point"_a, "epilogue"_a, "code, zero_point: of a; one zero point, or one per row.")
      .def("run", &GemmPlan::run, "a"_a, "out"_a, "out: [..., n]; sums past exact_depth are int64.")
      .def("workspace_bytes", &GemmPlan::workspace_bytes, "m"_a)
      .def_static("workspace_for", &workspace_of, "m"_a, "n"_a, "k"_a, "wide"_a = false,
                  "workspace_bytes of a plan of this size.");
  nb::class_<GroupGemmPlan>(m, "GroupGemmPlan", "int8 codes a [..., k] times weights in groups, with an epilogue.")
      .def(nb::init<std::shared_ptr<PackedGroups>, std::shared_ptr<EpilogueSpec>>(), "b"_a, "epilogue"_a,
           "Of the epilogue, bias and clamp apply.")
      .def("run", &GroupGemmPlan::run, "a"_a, "a_scale"_a, "out"_a, "a_scale: [m], or [m, groups].")
      .def("workspace_bytes", &GroupGemmPlan::workspace_bytes, "m"_a)
      .def_static(
          "workspace_for",
          [](int64_t rows, int64_t n, int64_t k, int bits, int64_t block) {
            const GroupSizes sizes = sizes_of(rows, n, k, bits, block);
            return std::pair(group_matmul_workspace(sizes, rows), sizes.packed_bytes(true));
          },
          "m"_a, "n"_a, "k"_a, "bits"_a, "block"_a, "Bytes that `run` works in, and most that packed weights take.")
      .def_static(
          "float_workspace_for",
          [](int64_t rows, int64_t n, int64_t k, int bits, int64_t block) {
            return float_group_workspace(sizes_of(rows, n, k, bits, block), rows);
          },
          "m"_a, "n"_a, "k"_a, "bits"_a, "block"_a, "The same for floats on the left.");
  m.def("transpose", &transpose_of, "source"_a, "out"_a,
        "out[b][j][i] = source[b][i][j], items of 1, 2, 4 or 8 bytes.");
  m.attr("exact_depth") = kExactK;
}

}  // namespace lowbit
