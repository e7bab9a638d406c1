// c10d::ProcessGroup on Gloo. The NCCL plugin makes groups of the same type, which the same calls drive.
#include "common.h"
#include "shim.h"

#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

using namespace forebay;

namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Op = c10d::ReduceOp::RedOpType;

// Numbers shared with group.rs.
Op op_of(int op) {
  constexpr Op kOps[] = {Op::SUM, Op::AVG, Op::MIN, Op::MAX, Op::PRODUCT};
  TORCH_CHECK(op >= 0 && op < 5, "no such reduction: ", op);
  return kOps[op];
}

// A collective under way, and what is left to do once it is through.
struct Pending {
  WorkPtr work;
  std::function<void()> after;
};

void* pending(WorkPtr work, std::function<void()> after = {}) {
  TORCH_CHECK(work, "the backend has nothing to wait for");
  return new Pending{std::move(work), std::move(after)};
}

// Gloo has no AVG: it is SUM followed by a division. NCCL has, but not for integers: floating point for both.
Op wire_op(const GroupPtr& group, int op, const at::Tensor& value, std::function<void()>& after) {
  auto wanted = op_of(op);
  if (wanted != Op::AVG) return wanted;
  TORCH_CHECK(value.is_floating_point(), "an average wants floating point, not ", value.scalar_type());
  if (!value.is_cpu()) return wanted;
  after = [value, world = group->getSize()] {
    at::NoGradGuard no_grad;
    value.div_(world);
  };
  return Op::SUM;
}

}  // namespace

char* fb_group_gloo(void* store_handle, int rank, int world, int64_t timeout_ms, void** out) {
  return guard([&] {
    using Backend = c10d::ProcessGroup::BackendType;
    auto& shared = store(store_handle);
    auto options = c10d::ProcessGroupGloo::Options::create_default(milliseconds(timeout_ms));
    auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>("gloo", shared), rank, world, options);
    auto made = c10::make_intrusive<c10d::ProcessGroup>(shared, rank, world);
    made->setDefaultBackend(Backend::GLOO);
    made->setBackend(c10::DeviceType::CPU, Backend::GLOO, backend);
    made->setGroupName("default");
    *out = new GroupPtr(std::move(made));
  });
}

// NCCL wants to be told that no further calls come: after a failure it must not wait for its peers.
void fb_group_free(void* handle, int failed) {
  auto* owned = static_cast<GroupPtr*>(handle);
  free(guard([&] {
    for (auto& device : (*owned)->getDeviceTypes()) {
      if (!device.is_cuda()) continue;
      auto backend = (*owned)->getBackend(device.type());
      failed ? backend->abort() : backend->shutdown();
    }
  }));
  delete owned;
}

char* fb_group_all_reduce(void* handle, void* value, int op, void** work) {
  return guard([&] {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> values{storage_of(value)};
    std::function<void()> after;
    c10d::AllreduceOptions options;
    options.reduceOp = wire_op(group(handle), op, values[0], after);
    *work = pending(group(handle)->allreduce(values, options), std::move(after));
  });
}

char* fb_group_reduce_scatter(void* handle, void* input, void* output, int op, void** work) {
  return guard([&] {
    at::NoGradGuard no_grad;
    auto from = storage_of(input), to = storage_of(output);
    std::function<void()> after;
    c10d::ReduceScatterOptions options;
    options.reduceOp = wire_op(group(handle), op, to, after);
    *work = pending(group(handle)->_reduce_scatter_base(to, from, options), std::move(after));
  });
}

char* fb_group_broadcast(void* handle, void* value, int root, void** work) {
  return guard([&] {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> values{storage_of(value)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    *work = pending(group(handle)->broadcast(values, options));
  });
}

char* fb_group_all_gather(void* handle, void* value, void* const* outputs, size_t count, void** work) {
  return guard([&] {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> inputs{storage_of(value)};
    std::vector<std::vector<at::Tensor>> gathered{tensors(outputs, count)};
    *work = pending(group(handle)->allgather(gathered, inputs));
  });
}

char* fb_group_gather(void* handle, void* value, void* const* outputs, size_t count, int root, void** work) {
  return guard([&] {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> inputs{storage_of(value)};
    std::vector<std::vector<at::Tensor>> gathered;
    if (group(handle)->getRank() == root) gathered.push_back(tensors(outputs, count));
    c10d::GatherOptions options;
    options.rootRank = root;
    *work = pending(group(handle)->gather(gathered, inputs, options));
  });
}

char* fb_group_send(void* handle, void* value, int to, int tag, void** work) {
  return guard([&] {
    std::vector<at::Tensor> values{storage_of(value)};
    *work = pending(group(handle)->send(values, to, tag));
  });
}

char* fb_group_recv(void* handle, void* value, int from, int tag, void** work) {
  return guard([&] {
    std::vector<at::Tensor> values{storage_of(value)};
    *work = pending(group(handle)->recv(values, from, tag));
  });
}

char* fb_group_barrier(void* handle, void** work) {
  return guard([&] { *work = pending(group(handle)->barrier()); });
}

char* fb_work_wait(void* handle, int64_t timeout_ms) {
  return guard([&] {
    auto& waiting = *static_cast<Pending*>(handle);
    auto timeout = timeout_ms < 0 ? kNoTimeout : milliseconds(timeout_ms);
    TORCH_CHECK(waiting.work->wait(timeout), "the operation was aborted");
    if (auto after = std::exchange(waiting.after, {})) after();
  });
}

void fb_work_free(void* handle) { delete static_cast<Pending*>(handle); }
