// The CPU, threads and the kernels there are.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "base/arch.h"
#include "base/threads.h"
#include "bindings/bindings.h"
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
#include "kernels/quantize/quantize.h"
#include "kernels/range/range.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowbit {
namespace {

const char* const kElementNames[] = {"f32", "f64", "f16", "bf16"};
const char* const kCodeNames[] = {"s8", "u8", "s16", "u16", "s4", "u4", "s2", "u2", "b1"};
const char* name_of(Element e) { return kElementNames[static_cast<int>(e)]; }
const char* name_of(Code c) { return kCodeNames[static_cast<int>(c)]; }

constexpr const char* kResultNames[] = {"s32", "f32", "f16", "bf16", "s8", "u8"};

// (family, isa, from, to) for every row of every kernels.inc this CPU can run.
std::vector<std::tuple<std::string, std::string, std::string, std::string>> kernel_rows() {
  std::vector<std::tuple<std::string, std::string, std::string, std::string>> rows;
  for (int i = 0; i < kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (!isa_available(isa)) continue;
    constexpr const char* kFit[kGemmRows] = {"any codes", "pairs that fit 16 bits", "fours that fit 16 bits"};
    for (int k = 0; k < kGemmRows; ++k) rows.emplace_back("gemm", isa_name(isa), kFit[k], gemm_rows(isa)[k].name);
    for (int k = 0; k < kGroupRows; ++k)
      rows.emplace_back("groups", isa_name(isa), std::to_string(group_rows(isa)[k].bits), group_rows(isa)[k].name);
    if (isa != base_isa(isa)) continue;  // the tables of the others are those of this
    for (int k = 0; k < kFinishRows; ++k)
      rows.emplace_back("finish", isa_name(isa), "s32", kResultNames[static_cast<int>(finish_rows(isa)[k].out)]);
    for (int k = 0; k < kFloatDotRows; ++k)
      rows.emplace_back("float_dot", isa_name(isa), name_of(float_dot_rows(isa)[k].in), "");
    for (int k = 0; k < kFloatGroupRows; ++k)
      rows.emplace_back("float_groups", isa_name(isa), std::to_string(float_group_rows(isa)[k].bits), "");
    for (int k = 0; k < kQuantizeRows; ++k) {
      const QuantizeRow& r = quantize_rows(isa)[k];
      rows.emplace_back("quantize", isa_name(isa), name_of(r.in), name_of(r.code));
    }
    for (int k = 0; k < kDequantizeRows; ++k) {
      const DequantizeRow& r = dequantize_rows(isa)[k];
      rows.emplace_back("dequantize", isa_name(isa), name_of(r.code), name_of(r.out));
    }
    for (int k = 0; k < kFakeQuantRows; ++k)
      rows.emplace_back("fake_quant", isa_name(isa), name_of(fake_quant_rows(isa)[k].in), "");
    for (int k = 0; k < kRangeRows; ++k) rows.emplace_back("range", isa_name(isa), name_of(range_rows(isa)[k].in), "");
    for (int k = 0; k < kPackRows; ++k)
      rows.emplace_back("pack", isa_name(isa), std::to_string(pack_rows(isa)[k].bits), "");
    for (int k = 0; k < kBinaryKernels; ++k) {
      rows.emplace_back("binary", isa_name(isa), name_of(binary_rows(isa)[k].code), binary_rows(isa)[k].way);
      if (isa == Isa::avx512 && binary_rows_with_vpopcnt() != nullptr)
        rows.emplace_back("binary", isa_name(isa), name_of(binary_rows(isa)[k].code),
                          binary_rows_with_vpopcnt()[k].way);
    }
    for (int k = 0; k < kDwconvRows; ++k) {
      const DwconvRow& r = dwconv_rows(isa)[k];
      const std::string size = std::to_string(r.kh) + "x" + std::to_string(r.kw) + "/" + std::to_string(r.stride);
      rows.emplace_back("dwconv", isa_name(isa), name_of(r.code), r.kh == 0 ? "any" : size);
    }
    for (int k = 0; k < kCombineRows; ++k) {
      const CombineRow& r = combine_rows(isa)[k];
      rows.emplace_back("combine", isa_name(isa), r.op == CombineOp::add ? "add" : "mul", name_of(r.code));
    }
    for (int k = 0; k < kCodesRows; ++k)
      rows.emplace_back("codes", isa_name(isa), name_of(codes_rows(isa)[k].code), "");
    for (int k = 0; k < kPoolRows; ++k) rows.emplace_back("pool", isa_name(isa), name_of(pool_rows(isa)[k].code), "");
  }
  return rows;
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (int i = 0; i < kIsaCount; ++i)
    if (isa_available(static_cast<Isa>(i))) names.push_back(isa_name(static_cast<Isa>(i)));
  return names;
}

}  // namespace

void bind_hardware(nb::module_& m) {
  m.def("num_threads", &num_threads);
  m.def("set_num_threads", &set_num_threads, "n"_a);
  m.def("usable_cpus", &usable_cpus, "CPUs this process may use: affinity and cgroup quota.");
  m.def("cpu_features", &cpu_features, "Instruction sets by name, and whether this machine offers them.");
  m.def("cpu_brand", &cpu_brand);
  m.def("active_isa", [] { return std::string(isa_name(active_isa())); }, "The ISA kernels are dispatched to.");
  m.def("available_isas", &available_isas);
  m.def("max_isa", [] { return max_isa(); });
  m.def(
      "set_max_isa",
      [](const std::string& name) {
        if (!set_max_isa(name)) throw nb::value_error(("no such ISA: " + name).c_str());
      },
      "name"_a, "Caps dispatch, as LOWBIT_MAX_ISA does; an empty name lifts the cap.");
  m.def("kernel_rows", &kernel_rows, "(family, isa, from, to) of every kernel this CPU can run.");
}

}  // namespace lowbit
