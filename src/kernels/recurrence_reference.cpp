#include "kernels/recurrence_reference.h"

#include <cstring>

#include "kernels/recurrence_layout.h"
#include "rule/oracle.h"

namespace qdelta {
namespace {

template <class T>
std::vector<T> read_all(const ConstTensorView& view) {
  std::vector<T> out;
  if (!view) return out;
  out.reserve(static_cast<std::size_t>(view.shape.elements()));
  for (std::int64_t i = 0; i < view.shape.elements(); ++i) out.push_back(static_cast<T>(element_as_double(view, i)));
  return out;
}

template <class T>
void write_all(const TensorView& view, const std::vector<T>& values) {
  if (!view) return;
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::int64_t offset = 0;
    auto index = static_cast<std::int64_t>(i);
    for (int axis = view.shape.rank - 1; axis >= 0; --axis) {
      offset += index % view.shape[axis] * view.step(axis);
      index /= view.shape[axis];
    }
    const auto value = static_cast<float>(values[i]);
    if (view.dtype == DType::bf16) {
      reinterpret_cast<BFloat16*>(view.data)[offset] = BFloat16(value);
    } else {
      reinterpret_cast<float*>(view.data)[offset] = value;
    }
  }
}

OracleShape shape_of(const RecurrenceInputs& in) {
  const RecurrenceLayout at(in, kDefaultChunk);
  OracleShape shape;
  shape.q_heads = at.H;
  shape.v_heads = at.HV;
  shape.key_dim = at.K;
  shape.value_dim = at.V;
  shape.rule = in.rule;
  shape.scale = in.scale;
  shape.qk_l2norm = in.qk_l2norm;
  if (in.cu_seqlens.empty()) {
    for (std::int64_t n = 0; n <= at.B; ++n) shape.offsets.push_back(n * at.T);
  } else {
    shape.offsets.assign(in.cu_seqlens.begin(), in.cu_seqlens.end());
  }
  return shape;
}

template <class T>
OracleInputs<T> inputs_of(const RecurrenceInputs& in) {
  OracleInputs<T> out{.q = read_all<T>(in.q),
                      .k = read_all<T>(in.k),
                      .v = read_all<T>(in.v),
                      .g = read_all<T>(in.g),
                      .beta = read_all<T>(in.beta),
                      .lambda = read_all<T>(in.lambda),
                      .h0 = read_all<T>(in.h0)};
  out.beta.resize(out.g.size());
  out.lambda.resize(out.g.size());
  return out;
}

}  // namespace

template <class T>
void reference_forward(const RecurrenceForward& args) {
  const OracleOutputs<T> out = oracle_forward(shape_of(args.in), inputs_of<T>(args.in));
  write_all(args.o, out.o);
  write_all(args.ht, out.ht);
}

template <class T>
void reference_backward(const RecurrenceBackward& args) {
  const OracleOutputs<T> d{read_all<T>(args.d_o), read_all<T>(args.d_ht)};
  const OracleInputs<T> grad = oracle_backward(shape_of(args.in), inputs_of<T>(args.in), d);
  write_all(args.dq, grad.q);
  write_all(args.dk, grad.k);
  write_all(args.dv, grad.v);
  write_all(args.dg, grad.g);
  write_all(args.dbeta, grad.beta);
  write_all(args.dlambda, grad.lambda);
  write_all(args.dh0, grad.h0);
}

template void reference_forward<double>(const RecurrenceForward&);
template void reference_backward<double>(const RecurrenceBackward&);
template void reference_backward<float>(const RecurrenceBackward&);

}  // namespace qdelta
