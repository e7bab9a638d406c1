// Arithmetic over many tensors at once: on a GPU a few kernels for a whole model, on a CPU a loop. Each operation rounds
// as the tensor method of the same name does, so optimizers built of them give PyTorch's values bit for bit.
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>

#include "tensors.h"

namespace forebay {

namespace {

// Lists of as many tensors each, of which there is at least one.
template <class... Lists>
bool alike(Tensors first, Lists... others) {
  if (!((others.size() == first.size()) && ...)) {
    std::string text = "lists of " + std::to_string(first.size());
    size_t left = sizeof...(others);
    ((text += (--left == 0 ? " and " : ", ") + std::to_string(others.size())), ...);
    TORCH_CHECK(false, text, " tensors");
  }
  return !first.empty();
}

}  // namespace

void foreach_scale(Tensors x, double factor) {
  at::NoGradGuard no_grad;
  if (alike(x)) at::_foreach_mul_(list(x), factor);
}

void foreach_add_scaled(Tensors x, Tensors y, double factor) {
  at::NoGradGuard no_grad;
  if (alike(x, y)) at::_foreach_add_(list(x), list(y), factor);
}

void foreach_lerp(Tensors x, Tensors y, double weight) {
  at::NoGradGuard no_grad;
  if (alike(x, y)) at::_foreach_lerp_(list(x), list(y), weight);
}

void foreach_add_product(Tensors x, Tensors y, Tensors z, double factor) {
  at::NoGradGuard no_grad;
  if (alike(x, y, z)) at::_foreach_addcmul_(list(x), list(y), list(z), factor);
}

void foreach_add_quotient(Tensors x, Tensors y, Tensors z, double factor) {
  at::NoGradGuard no_grad;
  if (alike(x, y, z)) at::_foreach_addcdiv_(list(x), list(y), list(z), factor);
}

NewTensors foreach_sums(Tensors x, Tensors y, double factor) {
  at::NoGradGuard no_grad;
  auto sums = std::make_unique<std::vector<at::Tensor>>();
  if (alike(x, y)) *sums = at::_foreach_add(list(x), list(y), factor);
  return sums;
}

NewTensors foreach_adam_denominators(Tensors squares, double correction, double eps) {
  at::NoGradGuard no_grad;
  auto roots = std::make_unique<std::vector<at::Tensor>>();
  if (!alike(squares)) return roots;
  *roots = at::_foreach_sqrt(list(squares));
  at::_foreach_div_(*roots, correction);
  at::_foreach_add_(*roots, eps);
  return roots;
}

double foreach_norm(Tensors values) {
  at::NoGradGuard no_grad;
  return alike(values) ? at::stack(at::_foreach_norm(list(values))).norm().item<double>() : 0;
}

bool foreach_unscale(Tensors values, double factor) {
  at::NoGradGuard no_grad;
  if (!alike(values)) return true;
  auto all = list(values);
  auto options = all[0].options().dtype(at::kFloat);
  auto bad = at::zeros({1}, options);
  at::_amp_foreach_non_finite_check_and_unscale_(all, bad, at::full({1}, factor, options));
  return bad.item<float>() == 0;
}

}  // namespace forebay
