// SPDX-License-Identifier: MIT
#include "dist/process_group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <thread>

#include "base/log.h"
#include "base/this_process.h"
#include "dist/meeting.h"
#include "dist/process_group_backend.h"
#include "dist/rank_watch.h"

namespace dalle2 {
namespace {

/// Of a call of c10d: it is the watch that says when one has taken too long.
constexpr std::chrono::hours kNoLimit{24 * 30};
/// Of the first collective of the GPUs.
constexpr std::chrono::minutes kGpuConnectLimit{5};
/// Of the end of what carries collectives, which has nothing more to lose.
constexpr std::chrono::seconds kEndLimit{10};
/// Of a call to the store, which answers at once as long as its process lives.
constexpr std::chrono::seconds kStoreLimit{300};

constexpr const char* kAdvice =
    "\n  The run ends. What it has saved is intact: start it again once the cause is gone, and it "
    "will resume.";

/// Told by the watch from its own thread: the others are asleep in a collective that will not end.
[[noreturn]] void end_process(const World& world, const std::string& report) {
  const std::string message = report + kAdvice;
  log_error("dist", "{}", message);
  write_failure_file(world, message);
  std::fflush(nullptr);
  std::_Exit(static_cast<int>(ExitCode::kNetwork));
}

/// Whether `part` came to its end in time. If not, its thread is left behind.
bool ends_within(std::chrono::seconds limit, std::function<void()> part) noexcept {
  try {
    std::packaged_task<void()> task(std::move(part));
    const std::future<void> end = task.get_future();
    std::thread(std::move(task)).detach();
    return end.wait_for(limit) == std::future_status::ready;
  } catch (const std::exception&) {  // there is no thread to be had
    return false;
  }
}

int64_t clock_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

int64_t hash_of(const std::string& text) {
  return static_cast<int64_t>(std::hash<std::string>{}(text)&0x7fffffff);
}

/// Launches a collective under watch: NCCL's first one waits for the other ranks there.
/// @param limit see RankWatch::begin()
template <class Launch>
PendingCollective watched(RankWatch& watch,
                          const std::string& what,
                          const Launch& launch,
                          std::chrono::seconds limit = {}) {
  const int64_t number = watch.begin(what, limit);
  std::shared_ptr<BackendWork> work;
  try {
    work = launch();
  } catch (const Error&) {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::exception& error) {
    throw PeerError("{}{}", watch.explain(error.what(), number, what), kAdvice);
  }
  watch.launched(number, work);
  return {std::move(work), watch, number, what};
}

constexpr int64_t kMostDims = 6;
/// Of all ranks together in a piece: what rank 0 takes beside the rows.
constexpr int64_t kBytesAtOnce = int64_t{32} << 20;

struct Rows {
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> sizes;  // empty: nothing
};

/// @param own may be undefined @return a rank's each
std::vector<Rows> rows_of_ranks(ProcessGroup& group,
                                const at::Tensor& own,
                                const std::string& what) {
  std::vector<int64_t> shape(2 + kMostDims, 0);
  if (own.defined()) {
    D2_CHECK(
        own.dim() >= 1 && own.dim() <= kMostDims, "{}: rows of {} dimensions", what, own.dim());
    shape[0] = static_cast<int64_t>(own.scalar_type());
    shape[1] = own.dim();
    std::copy(own.sizes().begin(), own.sizes().end(), shape.begin() + 2);
  }
  std::vector<Rows> rows;
  for (const std::vector<int64_t>& theirs : group.exchange(shape, what + " (shape)")) {
    rows.push_back({static_cast<at::ScalarType>(theirs[0]),
                    {theirs.begin() + 2, theirs.begin() + 2 + theirs[1]}});
  }
  return rows;
}

/// A tensor like that of each rank.
std::vector<at::Tensor> room_for_rows(ProcessGroup& group,
                                      const at::Tensor& own,
                                      const std::string& what) {
  std::vector<at::Tensor> room;
  for (const Rows& theirs : rows_of_ranks(group, own, what)) {
    room.push_back(at::empty(theirs.sizes, at::TensorOptions().dtype(theirs.type)));
  }
  return room;
}

}  // namespace

void PendingCollective::wait() {
  if (!work_) return;
  const std::shared_ptr<BackendWork> work = std::move(work_);
  try {
    work->wait();
  } catch (const std::exception& error) {
    throw PeerError("{}{}", watch_->explain(error.what(), number_, what_), kAdvice);
  }
  // On a GPU the work is only enqueued: the watch sees itself when it is done.
  if (work->status().state == WorkState::kDone) watch_->end(number_);
}

ProcessGroup::ProcessGroup() = default;

ProcessGroup::ProcessGroup(const World& world, const GroupOptions& options)
    : world_(world), device_(options.device) {
  if (is_alone()) return;
  try {
    if (!world_.hosts_store) wait_for_store(world_);
    store_ = connect_store(world_, world_.hosts_store, kStoreLimit);
    world_.store_prefix += meet(world_, *store_) + "/";
    watch_ =
        std::make_unique<RankWatch>(world_,
                                    connect_store(world_, /*as_host=*/false, kStoreLimit),
                                    options.hang_timeout,
                                    [this](const auto& report) { end_process(world_, report); });
    const int64_t number = watch_->begin("connecting the ranks");
    backend_ = make_backend_of_group(world_, kNoLimit);
    watch_->end(number);
    watch_->meet_all();
    check_devices(options.device_id);
    watch_->set_device(device_);
    backend_->open_device(device_);
    connect_device();
    barrier("start");
  } catch (const Error& error) {
    tell_failure(error.what());
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    tell_failure(text);
    throw NetworkError(
        "{} cannot meet the others at {}:{}: {}\n"
        "  All ranks have to be started with the same MASTER_ADDR and MASTER_PORT, and reach that "
        "address; GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name the network interface.",
        world.name(),
        world.store_host,
        world.store_port,
        reason_of(text));
  }
}

/// NCCL connects all GPUs at the first collective, which takes its time on many machines.
void ProcessGroup::connect_device() {
  if (device_.is_cpu()) return;
  at::Tensor nothing = at::zeros({1}, device_);
  watched(
      *watch_,
      "connecting the GPUs",
      [&] {
        return backend_->all_reduce(GroupBackend::Where::kDevice, nothing, /*maximum=*/false);
      },
      kGpuConnectLimit)
      .wait();
}

/// A machine whose GPU is not found would meet the others by other means than they use.
void ProcessGroup::check_devices(const std::string& id) {
  const std::vector<std::string> devices = gather_texts(
      fmt::format("{} {}", c10::DeviceTypeName(device_.type(), /*lower_case=*/true), host_name()),
      "devices");
  const auto kind_of = [](const std::string& device) { return device.substr(0, device.find(' ')); };
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    if (kind_of(devices[rank]) == kind_of(devices.front())) continue;
    throw ConfigError(
        "rank {} computes on: {}; rank 0 on: {} (each with the name of its machine)\n"
        "  All ranks have to compute on the same kind of device: look at the GPUs of that machine, "
        "or "
        "set /train/device to \"cpu\".",
        rank,
        devices[rank],
        devices.front());
  }
  if (device_.is_cpu()) return;
  const std::vector<std::string> ids = gather_texts(id, "names of devices");
  if (world_.carrier == Carrier::kGloo) return;
  for (size_t rank = 0; rank < ids.size(); ++rank) {
    for (size_t other = 0; other < rank && !ids[rank].empty(); ++other) {
      if (ids[other] != ids[rank] || devices[other] != devices[rank]) continue;
      throw ConfigError(
          "ranks {} and {} are on the same GPU: {} ({})\n  NCCL needs one for each process, and "
          "slices of one GPU are not enough. Start one process per GPU on each machine, or set "
          "DALLE2_GROUP=gloo, which is slower.",
          other,
          rank,
          ids[rank],
          devices[rank]);
    }
  }
}

ProcessGroup::~ProcessGroup() {
  if (is_alone()) return;
  const bool is_waiting = watch_->is_waiting();
  watch_.reset();  // tells the others that this rank is done
  const bool fails = std::uncaught_exceptions() > 0;
  const bool ended = ends_within(kEndLimit, [fails, backend = backend_.get()] {
    fails ? backend->abort() : backend->shut_down();
  });
  // Gloo's destructor waits for what is under way, which others may be long in coming to: this
  // process ends with its error instead.
  if (!ended || (fails && is_waiting)) (void)backend_.release();
}

PendingCollective ProcessGroup::start_all_reduce(const at::Tensor& tensor,
                                                 const std::string& what) {
  if (is_alone()) return {};
  return watched(*watch_, what, [&] {
    return backend_->all_reduce(GroupBackend::Where::kDevice, tensor, /*maximum=*/false);
  });
}

PendingCollective ProcessGroup::start_reduce(const at::Tensor& tensor,
                                             const std::string& what,
                                             int root) {
  if (is_alone()) return {};
  return watched(*watch_, what, [&] { return backend_->reduce(tensor, root); });
}

bool ProcessGroup::sums_depend_on_place() const {
  return size() > 2 && backend_->sums_depend_on_place();
}

void ProcessGroup::all_reduce(const at::Tensor& tensor,
                              Reduction reduction,
                              const std::string& what) {
  if (is_alone()) return;
  watched(*watch_, what, [&] {
    return backend_->all_reduce(GroupBackend::Where::kDevice, tensor, reduction == Reduction::kMax);
  }).wait();
}

void ProcessGroup::broadcast(const at::Tensor& tensor, const std::string& what, int root) {
  if (is_alone()) return;
  watched(*watch_, what, [&] { return backend_->broadcast(tensor, root); }).wait();
}

void ProcessGroup::all_gather(const at::Tensor& whole,
                              const at::Tensor& part,
                              const std::string& what) {
  D2_CHECK(whole.numel() == part.numel() * size(), "{}: parts do not make the whole", what);
  if (is_alone()) {
    whole.copy_(part);
    return;
  }
  watched(*watch_, what, [&] {
    return backend_->all_gather(GroupBackend::Where::kDevice, whole, part);
  }).wait();
}

/// @param own [n] int64 @return [size, n]
at::Tensor ProcessGroup::exchange_rows(const at::Tensor& own, const std::string& what) {
  at::Tensor whole = at::empty({size() * own.numel()}, own.options());
  watched(*watch_, what, [&] {
    return backend_->all_gather(GroupBackend::Where::kHost, whole, own);
  }).wait();
  return whole.view({size(), own.numel()});
}

std::vector<std::vector<int64_t>> ProcessGroup::exchange(const std::vector<int64_t>& own,
                                                         const std::string& what) {
  if (is_alone()) return {own};
  // What the call is for and how many values it has: ranks that meet in different calls find out.
  std::vector<int64_t> message = {
      hash_of(what), static_cast<int64_t>(own.size()), int64_t{stop_requested()}, clock_us()};
  const auto header = static_cast<int64_t>(message.size());
  message.insert(message.end(), own.begin(), own.end());
  // A fixed length, so that even such a meeting is a message and no wreck.
  constexpr size_t kLeast = 9;
  message.resize(std::max(kLeast, message.size()));
  const at::Tensor rows =
      exchange_rows(at::tensor(message, at::TensorOptions().dtype(at::kLong)), what);
  heard_us_ = rows.const_data_ptr<int64_t>()[3];
  std::vector<std::vector<int64_t>> all;
  for (int rank = 0; rank < size(); ++rank) {
    const int64_t* row = rows.const_data_ptr<int64_t>() + rank * rows.size(1);
    if (row[0] != message[0] || row[1] != message[1]) {
      throw PeerError(
          "rank {} is in \"{}\" while rank {} is in another operation: the ranks do not run the "
          "same program, config or data",
          this->rank(),
          what,
          rank);
    }
    heard_stop_ = std::max(heard_stop_, row[2]);
    all.emplace_back(row + header, row + header + static_cast<int64_t>(own.size()));
  }
  return all;
}

std::vector<double> ProcessGroup::sum(const std::vector<double>& own, const std::string& what) {
  std::vector<int64_t> bits(own.size());
  std::memcpy(bits.data(), own.data(), own.size() * sizeof(double));
  std::vector<double> total(own.size(), 0.0);
  for (const std::vector<int64_t>& row : exchange(bits, what)) {
    std::vector<double> values(row.size());
    std::memcpy(values.data(), row.data(), row.size() * sizeof(double));
    for (size_t i = 0; i < values.size(); ++i) total[i] += values[i];
  }
  return total;
}

double ProcessGroup::heard_seconds() const {
  return static_cast<double>(is_alone() ? clock_us() : heard_us_) / 1e6;
}

int64_t ProcessGroup::most(int64_t own, const std::string& what) {
  int64_t found = own;
  for (const auto& row : exchange({own}, what)) found = std::max(found, row[0]);
  return found;
}

void ProcessGroup::any(std::vector<bool>& flags, const std::string& what) {
  if (is_alone()) return;
  std::vector<int64_t> words((flags.size() + 62) / 63, 0);
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i]) words[i / 63] |= int64_t{1} << (i % 63);
  }
  for (const std::vector<int64_t>& row : exchange(words, what)) {
    for (size_t i = 0; i < flags.size(); ++i) {
      if (row[i / 63] >> (i % 63) & 1) flags[i] = true;
    }
  }
}

void ProcessGroup::gather_on_main(const at::Tensor& whole,
                                  const at::Tensor& part,
                                  const std::string& what) {
  if (is_alone()) {
    whole.copy_(part);
    return;
  }
  watched(*watch_, what, [&] { return backend_->gather_on_main(whole, part); }).wait();
}

std::vector<std::string> ProcessGroup::gather_texts(const std::string& own,
                                                    const std::string& what) {
  if (is_alone()) return {own};
  const auto lengths = exchange({static_cast<int64_t>(own.size())}, what + " (length)");
  int64_t longest = 0;
  for (const auto& row : lengths) longest = std::max(longest, row[0]);
  std::vector<int64_t> padded(static_cast<size_t>((longest + 7) / 8), 0);
  std::memcpy(padded.data(), own.data(), own.size());
  const auto rows = exchange(padded, what);
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    texts.emplace_back(reinterpret_cast<const char*>(rows[rank].data()),
                       static_cast<size_t>(lengths[rank][0]));
  }
  return texts;
}

std::string ProcessGroup::text_of_main(const std::string& own, const std::string& what) {
  return gather_texts(is_main() ? own : "", what).front();
}

void ProcessGroup::set_step(int64_t step) {
  if (watch_) watch_->set_step(step);
}

void ProcessGroup::still_busy() {
  if (watch_) watch_->still_busy();
}

ProcessGroup::BusyScope::BusyScope(ProcessGroup& group, const std::string& what)
    : watch_(group.watch_.get()) {
  if (watch_) before_ = watch_->set_busy(what);
}

ProcessGroup::BusyScope::~BusyScope() {
  if (watch_) watch_->set_busy(before_);
}

void ProcessGroup::tell_failure(const std::string& message) noexcept {
  if (watch_) watch_->tell_failure(message);
}

std::vector<at::Tensor> gather_rows(ProcessGroup& group,
                                    const at::Tensor& own,
                                    const std::string& what) {
  if (group.is_alone()) return {own};
  std::vector<at::Tensor> room = room_for_rows(group, own, what);
  int64_t most = 0;
  for (const at::Tensor& rows : room) most = std::max(most, static_cast<int64_t>(rows.nbytes()));
  const int64_t piece =
      std::clamp<int64_t>(kBytesAtOnce / group.size(), 1, std::max<int64_t>(most, 1));
  const at::Tensor part = at::zeros({piece}, at::kByte);
  const at::Tensor whole =
      group.is_main() ? at::empty({piece * group.size()}, at::kByte) : at::Tensor();
  // What of the piece from `begin` a tensor has.
  const auto share = [&](const at::Tensor& rows, int64_t begin) {
    return std::clamp<int64_t>(static_cast<int64_t>(rows.nbytes()) - begin, 0, piece);
  };
  for (int64_t begin = 0; begin < most; begin += piece) {
    if (const int64_t bytes = share(own, begin); bytes > 0) {
      std::memcpy(part.mutable_data_ptr(),
                  static_cast<const char*>(own.const_data_ptr()) + begin,
                  static_cast<size_t>(bytes));
    }
    group.gather_on_main(whole, part, what);
    sign_of_life();
    if (!group.is_main()) continue;
    for (size_t rank = 0; rank < room.size(); ++rank) {
      const int64_t bytes = share(room[rank], begin);
      if (bytes == 0) continue;
      std::memcpy(
          static_cast<char*>(room[rank].mutable_data_ptr()) + begin,
          static_cast<const char*>(whole.const_data_ptr()) + static_cast<int64_t>(rank) * piece,
          static_cast<size_t>(bytes));
    }
  }
  if (!group.is_main()) room.clear();
  return room;
}

GatheredRows all_gather_rows(ProcessGroup& group, const at::Tensor& own, const std::string& what) {
  if (group.is_alone()) return {own, 0};
  const std::vector<Rows> rows = rows_of_ranks(group, own, what);
  std::vector<int64_t> sizes;  // of the largest part: a collective takes as much of every rank
  for (const Rows& each : rows) {
    if (!each.sizes.empty() && (sizes.empty() || each.sizes[0] > sizes[0])) sizes = each.sizes;
  }
  if (sizes.empty() || sizes[0] == 0) return {};
  const int64_t most = sizes[0];
  const at::TensorOptions options = at::TensorOptions(group.device()).dtype(at::kFloat);
  const at::Tensor part = at::zeros(sizes, options);
  if (own.defined()) part.narrow(0, 0, own.size(0)).copy_(own);
  sizes[0] = most * group.size();
  const at::Tensor whole = at::zeros(sizes, options);
  group.all_gather(whole.view({-1}), part.view({-1}), what);
  std::vector<at::Tensor> pieces;
  int64_t begin = 0;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    const int64_t count = rows[rank].sizes.empty() ? 0 : rows[rank].sizes[0];
    if (static_cast<int>(rank) < group.rank()) begin += count;
    pieces.push_back(whole.narrow(0, static_cast<int64_t>(rank) * most, count));
  }
  return {at::cat(pieces), begin};
}

}  // namespace dalle2
