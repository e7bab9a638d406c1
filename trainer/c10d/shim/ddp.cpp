// c10d::Reducer and c10d::Logger, driven as torch.nn.parallel.DistributedDataParallel drives them.
#include "common.h"
#include "shim.h"

#include <algorithm>
#include <limits>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

using namespace forebay;

namespace {

struct Ddp {
  GroupPtr group;
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;
  std::vector<at::Tensor> buffers;
  bool find_unused;
  bool static_graph;
  // A synchronised pass was prepared, and its times have not been taken yet.
  bool unrecorded = false;

  // Takes the times of the last synchronised pass, once, if it is one that the reducer samples.
  void record() {
    if (std::exchange(unrecorded, false)) logger->set_runtime_stats_and_log();
  }
};

Ddp& ddp(void* pointer) { return *static_cast<Ddp*>(pointer); }

// In DistributedDataParallel: 250 MiB.
constexpr size_t kBroadcastBytes = size_t{250} << 20;

// torch.distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_hook, of which c10d has no C++ form:
// the bucket is rounded, summed, and put back.
class Bf16Compress : public c10d::CppCommHookInterface<GroupPtr> {
 public:
  using CppCommHookInterface::CppCommHookInterface;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    auto compressed = bucket.getBufferRef().to(at::kBFloat16).div_(state_->getSize());
    std::vector<at::Tensor> values{compressed};
    auto work = state_->allreduce(values);
    return work->getFuture()->then(
        [buffer = bucket.getBufferRef()](c10::ivalue::Future& done) -> c10::IValue {
          auto reduced = c10d::detail::parseCppCommHookResult(done.value());
          at::NoGradGuard no_grad;
          auto out = buffer;
          out.copy_(reduced);
          return out;
        },
        c10::ListType::ofTensors());
  }
};

void register_hook(c10d::Reducer& reducer, const GroupPtr& shared, int hook) {
  switch (hook) {
    case FB_HOOK_NONE:
      return;
    case FB_HOOK_FP16:
      return reducer.register_builtin_comm_hook(c10d::BuiltinCommHookType::FP16_COMPRESS);
    case FB_HOOK_BF16:
      return reducer.register_comm_hook(std::make_unique<Bf16Compress>(shared));
  }
  TORCH_CHECK(false, "no such communication hook: ", hook);
}

void broadcast(const GroupPtr& shared, const std::vector<at::Tensor>& values) {
  if (values.empty()) return;
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> state;
  for (auto& value : values) state.push_back(value.detach());
  c10d::broadcast_coalesced(shared, state, kBroadcastBytes, 0);
}

}  // namespace

// What the constructor of DistributedDataParallel does.
char* fb_ddp_new(void* group_handle, void* const* parameters, size_t parameter_count, void* const* buffers,
                 size_t buffer_count, const FbDdpOptions* options, void** out) {
  return guard([&] {
    auto& shared = group(group_handle);
    auto values = tensors(parameters, parameter_count);
    TORCH_CHECK(!values.empty(), "the model has no parameters");
    for (auto& value : values) {
      TORCH_CHECK(value.is_leaf() && value.requires_grad(), "a parameter is not a leaf that requires a gradient");
    }
    auto made = std::make_unique<Ddp>();
    made->group = shared;
    made->find_unused = options->find_unused && !options->static_graph;
    made->static_graph = options->static_graph;
    made->buffers = tensors(buffers, buffer_count);
    c10d::verify_params_across_processes(shared, values, std::nullopt);
    auto state = values;
    state.insert(state.end(), made->buffers.begin(), made->buffers.end());
    broadcast(shared, state);

    // Like Python: one bucket until the order of the gradients is known, then rebuilt in the second iteration.
    std::vector<size_t> limits{std::numeric_limits<size_t>::max() >> 1};
    if (made->find_unused) {
      limits = {static_cast<size_t>(options->first_bucket_bytes), static_cast<size_t>(options->bucket_bytes)};
    }
    std::vector<bool> sparse(parameter_count, false);
    auto assignment = std::get<0>(c10d::compute_bucket_assignment_by_size(values, limits, sparse));
    std::reverse(assignment.begin(), assignment.end());
    made->reducer = std::make_shared<c10d::Reducer>(
        values, assignment, shared, sparse, options->bucket_bytes, static_cast<bool>(options->find_unused),
        static_cast<bool>(options->gradient_as_bucket_view), std::unordered_map<size_t, std::string>{},
        options->first_bucket_bytes, /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
        std::vector<int64_t>{});
    made->logger = std::make_shared<c10d::Logger>(made->reducer);
    made->reducer->set_logger(made->logger);
    std::vector<int> devices;
    if (values[0].is_cuda()) devices = {values[0].get_device()};
    made->logger->set_construction_data_and_log("tch", devices, devices.empty() ? -1 : devices[0],
                                                options->broadcast_buffers, /*has_sync_bn=*/false,
                                                static_cast<bool>(options->static_graph));
    if (options->static_graph) made->reducer->set_static_graph();
    made->reducer->set_ddp_runtime_logging_sample_rate(options->sample_every);
    register_hook(*made->reducer, shared, options->hook);
    *out = made.release();
  });
}

// _pre_forward: only passes that will be synchronised are prepared, which is the caller's to decide.
char* fb_ddp_before_forward(void* handle) {
  return guard([&] {
    ddp(handle).record();
    ddp(handle).reducer->prepare_for_forward();
    ddp(handle).reducer->rebuild_buckets();
  });
}

char* fb_ddp_broadcast_buffers(void* handle) {
  return guard([&] { broadcast(ddp(handle).group, ddp(handle).buffers); });
}

char* fb_ddp_before_backward(void* handle, void* const* outputs, size_t count) {
  return guard([&] {
    auto used = ddp(handle).find_unused ? tensors(outputs, count) : std::vector<at::Tensor>{};
    ddp(handle).reducer->prepare_for_backward(used);
    ddp(handle).unrecorded = true;
  });
}

// A static graph's first backward pass only counts hooks. In Python a callback of the autograd engine then reduces
// everything at the end of the pass; here that is done when the pass is over, which comes to the same.
char* fb_ddp_backward(void* handle, void* loss, int sync) {
  return guard([&] {
    tensor(loss).backward();
    if (sync && std::exchange(ddp(handle).static_graph, false)) ddp(handle).reducer->delay_all_reduce();
  });
}

char* fb_ddp_bucket_sizes(void* handle, int64_t* out, size_t capacity, size_t* count) {
  return guard([&] {
    auto sizes = ddp(handle).logger->get_bucket_sizes();
    std::copy_n(sizes.begin(), std::min(capacity, sizes.size()), out);
    *count = sizes.size();
  });
}

char* fb_ddp_record(void* handle) {
  return guard([&] { ddp(handle).record(); });
}

// A number that the logger does not have is 0.
char* fb_ddp_stats(void* handle, const char* const* keys, size_t count, int64_t* out) {
  return guard([&] {
    auto data = ddp(handle).logger->get_ddp_logging_data();
    for (size_t i = 0; i < count; i++) {
      auto entry = data.ints_map.find(keys[i]);
      out[i] = entry == data.ints_map.end() ? 0 : entry->second;
    }
  });
}

// The logger points into the reducer, and the reducer into the group: that order, not the members' reverse.
void fb_ddp_free(void* handle) {
  auto* owned = static_cast<Ddp*>(handle);
  owned->logger.reset();
  owned->reducer.reset();
  delete owned;
}

// torch's own zero_grad detaches the gradient, which a view into a bucket forbids.
char* fb_zero_grads(void* const* parameters, size_t count, int set_to_none) {
  return guard([&] {
    at::NoGradGuard no_grad;
    for (auto& parameter : tensors(parameters, count)) {
      auto& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (set_to_none) {
        gradient.reset();
      } else {
        gradient.zero_();
      }
    }
  });
}
