// c10d::Reducer and c10d::Logger, driven as torch.nn.parallel.DistributedDataParallel drives them.
#include "tensors.h"

#include <algorithm>
#include <limits>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace forebay {

namespace {

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

void register_hook(c10d::Reducer& reducer, const GroupPtr& shared, Compression compression) {
  if (compression == Compression::Fp16) {
    reducer.register_builtin_comm_hook(c10d::BuiltinCommHookType::FP16_COMPRESS);
  } else if (compression == Compression::Bf16) {
    reducer.register_comm_hook(std::make_unique<Bf16Compress>(shared));
  }
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
std::unique_ptr<Reducer> make_reducer(const GroupHandle& group, Tensors parameters, Tensors buffers,
                                      const DdpSettings& settings) {
  auto& shared = group.pointer;
  auto values = list(parameters);
  TORCH_CHECK(!values.empty(), "the model has no parameters");
  for (auto& value : values) {
    TORCH_CHECK(value.is_leaf() && value.requires_grad(), "a parameter is not a leaf that requires a gradient");
  }
  auto made = std::make_unique<Reducer>();
  made->group = shared;
  made->find_unused = settings.find_unused && !settings.static_graph;
  made->static_graph = settings.static_graph;
  if (settings.broadcast_buffers) made->buffers = list(buffers);
  c10d::verify_params_across_processes(shared, values, std::nullopt);
  auto state = values;
  for (auto& buffer : list(buffers)) state.push_back(buffer);
  broadcast(shared, state);

  // Like Python: one bucket until the order of the gradients is known, then rebuilt in the second iteration.
  auto bytes = [](uint64_t size) { return static_cast<int64_t>(std::min<uint64_t>(size, INT64_MAX)); };
  auto first_bytes = bytes(settings.first_bucket_bytes), bucket_bytes = bytes(settings.bucket_bytes);
  std::vector<size_t> limits{std::numeric_limits<size_t>::max() >> 1};
  if (made->find_unused) limits = {static_cast<size_t>(first_bytes), static_cast<size_t>(bucket_bytes)};
  std::vector<bool> sparse(values.size(), false);
  auto assignment = std::get<0>(c10d::compute_bucket_assignment_by_size(values, limits, sparse));
  std::reverse(assignment.begin(), assignment.end());
  made->reducer = std::make_shared<c10d::Reducer>(
      values, assignment, shared, sparse, bucket_bytes, settings.find_unused, settings.gradient_as_bucket_view,
      std::unordered_map<size_t, std::string>{}, first_bytes, /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false, std::vector<int64_t>{});
  made->logger = std::make_shared<c10d::Logger>(made->reducer);
  made->reducer->set_logger(made->logger);
  std::vector<int> devices;
  if (values[0].is_cuda()) devices = {values[0].get_device()};
  made->logger->set_construction_data_and_log("tch", devices, devices.empty() ? -1 : devices[0],
                                              !made->buffers.empty(), /*has_sync_bn=*/false, settings.static_graph);
  if (settings.static_graph) made->reducer->set_static_graph();
  made->reducer->set_ddp_runtime_logging_sample_rate(std::clamp<uint32_t>(settings.sample_every, 1, INT32_MAX));
  register_hook(*made->reducer, shared, settings.compression);
  return made;
}

// The logger points into the reducer, and the reducer into the group: that order, not the members' reverse.
Reducer::~Reducer() {
  logger.reset();
  reducer.reset();
}

void Reducer::record() const {
  if (std::exchange(unrecorded, false)) logger->set_runtime_stats_and_log();
}

// _pre_forward: only passes that will be synchronised are prepared, which is the caller's to decide.
void Reducer::before_forward() const {
  record();
  reducer->prepare_for_forward();
  reducer->rebuild_buckets();
}

void Reducer::broadcast_buffers() const { broadcast(group, buffers); }

void Reducer::before_backward(const at::Tensor& output) const {
  std::vector<at::Tensor> used;
  if (find_unused) used.push_back(output);
  reducer->prepare_for_backward(used);
  unrecorded = true;
}

// A static graph's first backward pass only counts hooks. In Python a callback of the autograd engine then reduces
// everything at the end of the pass; here that is done when the pass is over, which comes to the same.
void Reducer::backward(const at::Tensor& loss, bool sync) const {
  loss.backward();
  if (sync && std::exchange(static_graph, false)) reducer->delay_all_reduce();
}

rust::Vec<int64_t> Reducer::bucket_sizes() const {
  rust::Vec<int64_t> sizes;
  for (auto size : logger->get_bucket_sizes()) sizes.push_back(size);
  return sizes;
}

DdpStats Reducer::stats() const {
  record();
  auto data = logger->get_ddp_logging_data();
  // A number that the logger does not have is 0.
  auto number = [&](const std::string& key) {
    auto entry = data.ints_map.find(key);
    return entry == data.ints_map.end() ? int64_t{0} : std::max<int64_t>(entry->second, 0);
  };
  auto times = [&](const std::string& prefix) {
    return PassTimes{number(prefix + "forward_compute_time"), number(prefix + "backward_compute_time"),
                     number(prefix + "backward_comm_time"), number(prefix + "backward_compute_comm_overlap_time")};
  };
  return DdpStats{number("iteration"), times(""), times("avg_")};
}

// torch's own zero_grad detaches the gradient, which a view into a bucket forbids.
void zero_gradients(Tensors parameters, bool set_to_none) {
  at::NoGradGuard no_grad;
  for (auto& parameter : list(parameters)) {
    auto& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (set_to_none) {
      gradient.reset();
    } else {
      gradient.zero_();
    }
  }
}

}  // namespace forebay
