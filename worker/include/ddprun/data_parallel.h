// Data-parallel training of one module. Every rank holds a copy of the module and computes
// gradients on its own samples. After backward(), `.grad` on each rank holds the average over all
// ranks. The behaviour, the buckets and the bits are those of PyTorch 2.11's
// DistributedDataParallel (with Gloo, on CPU). By default gradients lie in the buckets, as with its
// gradient_as_bucket_view.
//
//   Net net;
//   ddprun::DataParallel parallel(net.ptr(), *process.collective);
//   torch::optim::SGD optimizer(net->parameters(), 0.01);
//   for (const auto& [images, labels] : batches) {
//     optimizer.zero_grad();
//     const auto loss = torch::nll_loss(parallel.forward(net, images), labels);
//     loss.backward();  // the sums travel while it runs; what comes after it finds them complete
//     parallel.step(optimizer);
//   }
//
// It does not wrap the module, own the optimizer or split the data (see DistributedSampler). Call
// it from the training thread. The collective must outlive it. Errors are exceptions.
// std::invalid_argument says that options or a module cannot be trained. CollectiveError says that
// a sum failed. std::runtime_error is the rest. An error that PyTorch has too begins with its
// words.
#pragma once

#include <ATen/core/Tensor.h>
#include <ddprun/collective.h>
#include <ddprun/comm_hook.h>
#include <ddprun/join.h>
#include <ddprun/log_record.h>
#include <ddprun/optimizers.h>
#include <ddprun/output_tensors.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::worker {
class GradientReducer;
class ParameterIndex;
}  // namespace ddprun::worker

namespace ddprun {

// A parameter or buffer with its name.
struct NamedTensor {
  std::string name;   // dotted path in the module
  at::Tensor tensor;  // the module's, not a copy
};

// The moment when buffers are made alike: around a forward() that follows one which synchronised
// gradients.
enum class BufferMoment { kBeforeForward, kAfterForward };

// A function in place of the copy of rank 0's buffers. Gets all buffers with their names, without
// those in `ignore`. All ranks call it at the same forwards, on the training thread.
using BufferHook = std::function<void(std::vector<NamedTensor>& buffers, Collective& collective)>;

// The limit of a bucket in PyTorch 2.11 (torch/nn/parallel/distributed.py, _ddp_init_helper).
inline constexpr std::size_t kBucketCapBytes = std::size_t{25} << 20;
// PyTorch's limit of the first bucket. It is small, so that its sum starts early. A program that
// sets a cap sets it for all buckets, the first one too.
inline constexpr std::size_t kFirstBucketBytes = std::size_t{1} << 20;

// Options of DataParallel. Give equal ones on all ranks.
struct DataParallelOptions {
  // The limit of each rebuilt bucket: PyTorch's bucket_cap_mb. If it is unset, it is
  // kBucketCapBytes. With find_unused_parameters, which rebuilds nothing, of the first buckets.
  std::optional<std::size_t> bucket_cap_bytes;
  // The limit of the first rebuilt bucket. If it is unset, it is bucket_cap_bytes if that is set,
  // else kFirstBucketBytes. With DDP_SET_LAST_BUCKET_CAP=1 in the environment it is the last
  // bucket's: nothing can hide its sum.
  std::optional<std::size_t> first_bucket_bytes;
  // The limits of the first buckets and of the rebuilt ones, instead of both above. The last one
  // repeats. PyTorch's bucket_cap_mb_list.
  std::vector<std::size_t> bucket_cap_bytes_list;
  // `.grad` lies in the bucket: no copy back, no second copy of the gradients in memory. A single
  // rank without a communication hook has no buckets: its gradients stay where autograd has put
  // them.
  bool gradient_as_bucket_view = true;
  // Copies rank 0's buffers (running statistics) to all ranks. This happens at the first forward,
  // and at each forward after one that synchronised gradients. An evaluation (eval(), gradients
  // off) copies none: one rank may make it alone. Nor does a forward() while another one waits for
  // its backward(), which may need them.
  bool broadcast_buffers = true;
  bool init_sync = true;  // verify the model and take rank 0's state at construction
  // A parameter that forward()'s outputs, or the loss, do not depend on needs no gradient. If other
  // ranks used it, it gets their average, this rank counting as zero. If nobody did, its `.grad`
  // stays as it is. Costs a walk through the graph and one small sum in each pass.
  bool find_unused_parameters = false;
  // All passes use the same parameters, equally often. Then parameters may be unused, and may get
  // several gradients in a pass (activation checkpointing). The first pass counts.
  bool static_graph = false;
  // With find_unused_parameters, a bucket that is wholly unused is not summed. All ranks must then
  // leave out the same parameters, always.
  bool skip_all_reduce_unused_params = false;
  // On CPU, memory that is freed stays in the process, for the next gradient. Else glibc gives it
  // back to the kernel in each pass, and takes it again, page by page. For the whole process, and
  // for good (mallopt(3)). Nothing is changed where the environment sets up malloc (MALLOC_*_,
  // GLIBC_TUNABLES); log_record() says whether it was.
  bool keep_freed_memory = true;
  // Names of parameters and buffers that DataParallel leaves alone: not compared, copied or summed.
  std::vector<std::string> ignore;
  // Names of parameters with sparse gradients, beside those of Embedding and EmbeddingBag, which
  // are known by their options. Every rank gets all indices and values, and adds them.
  std::vector<std::string> sparse_parameters;
  // Names of parameters whose gradients travel last, when all others are on their way. They have
  // one bucket for each dtype. PyTorch's delay_all_reduce_named_params. It has a
  // param_to_hook_all_reduce beside it, whose gradient starts that sum. Here the last of the other
  // gradients does.
  std::vector<std::string> delay_all_reduce;
};

// The training of one module by all ranks. See the head of this file. The program owns it; it
// shares the module.
class DataParallel final : public Joinable {
 public:
  // Makes all ranks' models alike and hooks into backward(). All ranks must call it. Throws if no
  // parameter needs a gradient, or if one has a dtype that cannot be summed. Throws if parameters
  // lie on different devices, or not on the collective's. Throws on all ranks if their models
  // differ in the number or shapes of parameters. If one rank throws, all do; without init_sync it
  // does so alone.
  DataParallel(std::shared_ptr<torch::nn::Module> module, Collective& collective,
               const DataParallelOptions& options = {});
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;
  DataParallel(DataParallel&&) = delete;
  DataParallel& operator=(DataParallel&&) = delete;
  // Removes the hooks. Gradients that lie in buckets stay valid. The last backward() may have
  // returned and left parameters without a gradient. Then a step on the model has made the ranks
  // part, and nobody may use it. This logs which parameters, and ends the process with exit code 1.
  ~DataParallel();

  // Calls model->forward(arguments...), with what must happen before and after it, and returns its
  // result. All ranks must call it as often, but for evaluation and a Join. `model` must be the
  // constructor's module, by its own type, or one with some of its parameters alone. The next
  // backward() averages the gradients, unless a NoSync lives or gradients are off. Throws
  // std::invalid_argument for a module with a parameter that no DataParallel has, as a clone() is.
  template <typename Model, typename... Arguments>
  auto forward(Model& model, Arguments&&... arguments) {
    if constexpr (requires { check_model(*model); }) check_model(*model);
    before_forward();
    auto output = model->forward(std::forward<Arguments>(arguments)...);
    after_forward(output);
    return output;
  }

  // Begins a forward(): its first half, for models with several entry points. With gradients on, it
  // throws std::runtime_error in these cases:
  // - The previous backward() left parameters without a gradient.
  // - A parameter was unfrozen, added or replaced since construction.
  // - A parameter has another dtype, size or device.
  // - A parameter was frozen. All may be: then the pass sums nothing. With find_unused_parameters
  //   any may be.
  void before_forward();
  // Ends a forward() without outputs. Throws std::invalid_argument if find_unused_parameters or
  // static_graph need them.
  void after_forward();
  // Ends a forward(). find_unused_parameters and static_graph must know the outputs: it replaces
  // their tensors by copies that it can follow. Outputs may be tensors, and any vector, array,
  // tuple, pair, optional or map of such. OutputTensors (output_tensors.h) teaches it a type of the
  // program. Throws std::invalid_argument if it needs outputs and gets a type that it does not
  // know.
  template <typename Output>
  void after_forward(Output& output) {
    std::vector<at::Tensor*> tensors;
    if constexpr (OutputTensors<Output>::kKnown) {
      if (follows_outputs()) OutputTensors<Output>::collect(output, tensors);
      end_forward(tensors);
    } else {
      after_forward();
    }
  }

  // A scope in which forward() prepares no sum: gradients accumulate on each rank. The first
  // forward() and backward() after it average what has accumulated. Only forward() must run while
  // the NoSync lives. Several may live at once; the last one to end counts.
  class NoSync {
   public:
    // Begins the scope. `parallel` must outlive it.
    explicit NoSync(DataParallel& parallel) : parallel_(parallel) { ++parallel_.no_sync_depth_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;
    NoSync(NoSync&&) = delete;
    NoSync& operator=(NoSync&&) = delete;
    // Ends the scope.
    ~NoSync() { --parallel_.no_sync_depth_; }

   private:
    DataParallel& parallel_;
  };
  // Returns a NoSync of this. All ranks must make the same passes under one.
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  // Lets the next backward() average the gradients, though its forward() ran under a NoSync. For
  // forwards that run ahead of their backwards, as in a Pipeline (pipeline.h), which calls it. All
  // ranks must call it. Throws std::logic_error unless forwards_may_run_ahead(), and while a NoSync
  // or a Join lives.
  void average_next_backward();
  // Says whether forwards may run ahead of their backwards. False with find_unused_parameters and
  // static_graph, since these must know the outputs, and with step_in_backward(). This rank alone.
  bool forwards_may_run_ahead() const;

  // Calls optimizer.step() if each `.grad` is the average of all ranks. All ranks must call it.
  // Throws std::runtime_error else, and names the parameters without a gradient, and those with
  // this rank's own in it. docs/data_parallel.md lists how that comes about. Throws, too, if the
  // optimizer has a gradient of a parameter that neither a DataParallel nor add_copies() knows. A
  // plain optimizer.step() makes the ranks part there; the next forward() or backward() throws
  // then. On CPU backward() throws on all ranks if their weights have parted in any other way. The
  // first step after an uneven Join gives all ranks the state of one optimizer, and all must call
  // it.
  template <typename Optimizer, typename... Arguments>
  auto step(Optimizer& optimizer, Arguments&&... arguments) {
    check_reduced();
    if constexpr (requires { optimizer.param_groups().front().params(); }) {
      check_stepped(stepped_tensors(optimizer));
    } else {
      check_stepped({});
    }
    // A ZeroOptimizer steps in the Join, too: its state is one.
    if constexpr (
        requires { share_state(optimizer); } && !requires { optimizer.in_join(); })
      share_state(optimizer);
    count_step();
    if constexpr (requires { note_settings(optimizer); }) note_settings(optimizer);
    return optimizer.step(std::forward<Arguments>(arguments)...);
  }

  // Adds tensors that the program steps in place of parameters, and sets `.grad` of. Such are
  // float32 copies (MasterWeights adds its own). Gives all ranks rank 0's values. All ranks must
  // call it, and again after resize(). It leaves alone those that it knows already.
  void add_copies(const std::vector<at::Tensor>& copies);

  // Makes the check of step() alone. This rank alone. On CUDA a sum may fail when backward() has
  // returned, and even after this: step() and forward() ask again. A program that writes a
  // checkpoint should wait for its stream and ask once more.
  void check_reduced() const;

  // Sends gradients in another way than as plain sums; worker/training/comm_hooks/ has hooks that
  // are made already. All ranks must set the same one, once, before the first forward(). Throws
  // else, or where a parameter is sparse.
  void comm_hook(CommHook hook);

  // Lets backward() make the steps: each parameter's as soon as its sum is complete, while later
  // sums are under way. `step` gets the parameter with the average in its `.grad`; afterwards that
  // is undefined. All ranks must set it, once, before the first forward().
  // worker/include/ddprun/optimizers.h makes one of an optimizer. Nothing that needs all gradients
  // at once goes with it, like clipping by their norm; step() throws. Once a rank has stepped a
  // parameter, its pass cannot be given up: reset() throws on all ranks.
  void step_in_backward(ParameterStep step);

  // Makes the buffers alike in another way than as copies of rank 0's, or at another moment. All
  // ranks must set it, once. Without broadcast_buffers it is not called.
  void buffer_hook(BufferHook hook, BufferMoment moment = BufferMoment::kAfterForward);

  // Returns the options, the model, the buckets and the latest pass, under PyTorch's keys
  // (log_record.h). On a GPU the durations are those of the latest measured pass that is over
  // there. The moments are the host's, so they do not fit them. Measured are the first ten passes,
  // and then each hundredth one. Ask between passes. This rank alone.
  LogRecord log_record() const;
  // Writes log_record() to a file, as JSON: whole or not at all. Throws std::runtime_error where
  // that fails.
  void write_log_record(const std::string& path) const;

  // Gives up a pass whose backward() threw, or whose sums failed. All ranks must call it, and then
  // may go on with forward(). A rank that waits in a sum of that pass throws CollectiveError when
  // another one calls it. All gradients are undefined after it, also those that passes under NoSync
  // had added. Throws if a rank has died or does not call it in time. Throws if the collective
  // cannot do it ("nccl", "hierarchical"). Throws if one rank has summed more passes, or made more
  // steps, than another: then nobody may train on. A plain optimizer.step() counts at the next
  // forward() only.
  void reset();

  // Trains on among other ranks, in the same process: those of `collective`. It must outlive this
  // object. The one before is not used any more. Its rank 0 must be a rank that has trained:
  // the others take its parameters and buffers, as at construction. Ranks that are new make a
  // DataParallel meanwhile. A pass that is under way is given up, whatever state it is in: all
  // gradients are undefined. Buckets begin anew, and hooks must be set again. The optimizer's state
  // is share_optimizer_state()'s part. The buckets before are freed first. This throws if there is
  // no room for the new ones. Then passes and steps throw, too, until another resize() ends well.
  void resize(Collective& collective);
  // Does the same, and holds the collective as long as it is used here.
  void resize(std::shared_ptr<Collective> collective);

  // Returns the ranks of its sums. It and the next four are for Join (join.h).
  Collective& join_ranks() override { return *collective_; }
  void begin_join(JoinContext& context, bool leads) override;
  void shadow(const JoinIteration& leading) override;
  void settle(int source) override;
  void end_join() noexcept override;

  // Returns parameter indices by bucket, in launch order. At first there is one bucket per dtype.
  // The first forward with gradients after a pass that was summed rebuilds them in PyTorch's
  // layout.
  const std::vector<std::vector<std::size_t>>& buckets() const;
  // Says whether buckets() are the rebuilt ones.
  bool buckets_rebuilt() const;
  // Goes on with the rebuilt buckets of an earlier run of the same model on as many ranks. Then the
  // first pass adds gradients in the order in which later ones do. All ranks must call it, before
  // the first forward(). Rank 0's layout counts. Returns false on all ranks, and changes nothing,
  // if the layout is not of this model. So it does with find_unused_parameters, which rebuilds
  // nothing.
  bool restore_buckets(const std::vector<std::vector<std::size_t>>& layout);
  // Returns parameter indices in the order of backward()'s gradients in the latest synchronising
  // pass. static_graph and find_unused_parameters may have some twice, or not at all.
  const std::vector<std::size_t>& ready_order() const;

 private:
  // A parameter of the module, and whether it needed a gradient at construction.
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    bool trained;
  };

  struct Prepared;
  Prepared prepare() const;
  void meet();
  void check_frozen() const;
  void check_same_parameters() const;
  void check_model(const torch::nn::Module& model) const;
  void check_stepped(const std::vector<at::Tensor>& stepped);
  void check_others(const std::vector<at::Tensor>& stepped) const;
  void note_settings(const torch::optim::Optimizer& optimizer);
  void list_parameters(std::vector<at::Tensor> parameters);
  void share_state(torch::optim::Optimizer& optimizer);
  bool is_trained() const;
  bool evaluates() const;
  void sync_buffers(BufferMoment moment, int source = 0);
  JoinIteration meet_joined(const JoinReport& mine);
  void see_round(const JoinIteration& round);
  void count_step();
  bool follows_outputs() const;
  worker::GradientReducer& reducer() const;  // throws std::logic_error after a failed resize()
  void end_forward(const std::vector<at::Tensor*>& outputs);

  std::shared_ptr<Collective> held_;  // of resize(); what follows ends before it
  std::shared_ptr<torch::nn::Module> module_;
  Collective* collective_;  // not null
  DataParallelOptions options_;
  std::vector<Parameter> parameters_;
  std::vector<at::Tensor> all_;     // also those to ignore; one with two names twice
  std::vector<at::Tensor> copies_;  // see add_copies()
  // Those of parameters_ that are trained, in their order; then the others of all_, and the copies.
  std::unique_ptr<worker::ParameterIndex> index_;
  std::size_t trained_ = 0;               // of index_
  std::vector<std::size_t> own_stepped_;  // see step()
  std::unique_ptr<worker::GradientReducer> reducer_;
  BufferHook buffer_hook_;
  BufferMoment buffer_moment_ = BufferMoment::kBeforeForward;
  std::string freed_memory_ = "as malloc likes";
  std::shared_ptr<std::function<void()>> on_backward_;  // for the outputs' graphs
  JoinContext* join_ = nullptr;                         // while a Join lives
  bool leads_join_ = false;
  bool was_joined_ = false;
  bool all_active_ = true;  // every rank has a batch in this iteration of a Join
  bool uneven_ = false;     // not so in some iteration of the last Join
  // Since an uneven Join: the rank that has made the most steps, and the optimizers that have its
  // state.
  std::optional<int> state_of_;
  std::vector<const torch::optim::Optimizer*> shared_;
  int no_sync_depth_ = 0;
  bool trains_ = true;           // not all of the trained parameters are frozen in this pass
  bool leaves_buffers_ = false;  // this forward() sends none, also if they are due
  bool buffers_due_ = true;      // the previous forward was a synchronising one
};

}  // namespace ddprun
