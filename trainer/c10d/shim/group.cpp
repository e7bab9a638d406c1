// c10d::ProcessGroup on Gloo. The NCCL plugin makes groups of the same type, which the same calls drive.
#include "tensors.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace forebay {

namespace {

using Reduction = c10d::ReduceOp::RedOpType;

NewWork pending(c10::intrusive_ptr<c10d::Work> work, std::function<void()> after = {}) {
  TORCH_CHECK(work, "the backend has nothing to wait for");
  return std::make_unique<WorkHandle>(WorkHandle{std::move(work), std::move(after)});
}

// Gloo has no AVG: it is SUM followed by a division. NCCL has, but not for integers: floating point for both.
Reduction wire_op(const GroupPtr& group, Op op, const at::Tensor& value, std::function<void()>& after) {
  switch (op) {
    case Op::Sum:
      return Reduction::SUM;
    case Op::Min:
      return Reduction::MIN;
    case Op::Max:
      return Reduction::MAX;
    case Op::Product:
      return Reduction::PRODUCT;
    default:
      break;
  }
  TORCH_CHECK(value.is_floating_point(), "an average wants floating point, not ", value.scalar_type());
  if (!value.is_cpu()) return Reduction::AVG;
  after = [value, world = group->getSize()] {
    at::NoGradGuard no_grad;
    value.div_(world);
  };
  return Reduction::SUM;
}

}  // namespace

std::unique_ptr<GroupHandle> gloo_group(const StoreHandle& store, int rank, int world, int64_t timeout_ms) {
  using Backend = c10d::ProcessGroup::BackendType;
  auto options = c10d::ProcessGroupGloo::Options::create_default(milliseconds(timeout_ms));
  auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>("gloo", store.pointer), rank, world, options);
  auto made = c10::make_intrusive<c10d::ProcessGroup>(store.pointer, rank, world);
  made->setDefaultBackend(Backend::GLOO);
  made->setBackend(c10::DeviceType::CPU, Backend::GLOO, backend);
  made->setGroupName("default");
  return std::unique_ptr<GroupHandle>(new GroupHandle{std::move(made), false});
}

// NCCL wants to be told that no further calls come: after a failure it must not wait for its peers.
GroupHandle::~GroupHandle() {
  told(
      [&] {
        for (auto& device : pointer->getDeviceTypes()) {
          if (!device.is_cuda()) continue;
          auto backend = pointer->getBackend(device.type());
          failed ? backend->abort() : backend->shutdown();
        }
      },
      [](const char*) {});
}

NewWork GroupHandle::all_reduce(const at::Tensor& value, Op op) const {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> values{storage_of(value)};
  std::function<void()> after;
  c10d::AllreduceOptions options;
  options.reduceOp = wire_op(pointer, op, values[0], after);
  return pending(pointer->allreduce(values, options), std::move(after));
}

NewWork GroupHandle::reduce_scatter(const at::Tensor& input, const at::Tensor& output, Op op) const {
  at::NoGradGuard no_grad;
  auto from = storage_of(input), to = storage_of(output);
  std::function<void()> after;
  c10d::ReduceScatterOptions options;
  options.reduceOp = wire_op(pointer, op, to, after);
  return pending(pointer->_reduce_scatter_base(to, from, options), std::move(after));
}

NewWork GroupHandle::broadcast(const at::Tensor& value, int root) const {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> values{storage_of(value)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  return pending(pointer->broadcast(values, options));
}

NewWork GroupHandle::all_gather(const at::Tensor& value, Tensors outputs) const {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> inputs{storage_of(value)};
  std::vector<std::vector<at::Tensor>> gathered{list(outputs)};
  return pending(pointer->allgather(gathered, inputs));
}

NewWork GroupHandle::gather(const at::Tensor& value, Tensors outputs, int root) const {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> inputs{storage_of(value)};
  std::vector<std::vector<at::Tensor>> gathered;
  if (pointer->getRank() == root) gathered.push_back(list(outputs));
  c10d::GatherOptions options;
  options.rootRank = root;
  return pending(pointer->gather(gathered, inputs, options));
}

NewWork GroupHandle::send(const at::Tensor& value, int to, int tag) const {
  std::vector<at::Tensor> values{storage_of(value)};
  return pending(pointer->send(values, to, tag));
}

NewWork GroupHandle::recv(const at::Tensor& value, int from, int tag) const {
  std::vector<at::Tensor> values{storage_of(value)};
  return pending(pointer->recv(values, from, tag));
}

NewWork GroupHandle::barrier() const { return pending(pointer->barrier()); }

void WorkHandle::wait(int64_t timeout_ms) const {
  auto timeout = timeout_ms < 0 ? kNoTimeout : milliseconds(timeout_ms);
  TORCH_CHECK(work->wait(timeout), "the operation was aborted");
  if (auto rest = std::exchange(after, {})) rest();
}

}  // namespace forebay
