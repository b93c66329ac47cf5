// Sums over gloo's ibverbs transport, with both of its algorithms. Two processes run it: They exchange addresses in FOLDER; RANK is 0 or 1.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

namespace {

constexpr int kSize = 2;
constexpr int kRounds = 3;

// run() may return before it has handled the completion of its last notification. The destructor throws in that case.
class Ring : public gloo::AllreduceRing<float> {
 public:
  using gloo::AllreduceRing<float>::AllreduceRing;

  // Completions of a queue pair arrive in order, so those of all earlier sends to this peer have been handled too.
  void drain() { sendNotificationBuf_->waitSend(); }
};

float element(int index, int rank) { return static_cast<float>(index % 1000 + rank); }

// Small integers, so the sum is exact.
void check(gloo::Algorithm& algorithm, std::vector<float>& data, int rank, const char* name) {
  const int count = static_cast<int>(data.size());
  for (int i = 0; i < count; i++) data[i] = element(i, rank);
  algorithm.run();
  for (int i = 0; i < count; i++) {
    if (data[i] != element(i, 0) + element(i, 1)) {
      std::fprintf(stderr, "%s: element %d of %d is %f\n", name, i, count, data[i]);
      std::exit(1);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int rank = std::atoi(argv[2]);
  gloo::transport::ibverbs::attr attr{"ferroce0", 1, 0};
  auto device = gloo::transport::ibverbs::CreateDevice(attr);
  gloo::rendezvous::FileStore store(argv[1]);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, kSize);
  context->connectFullMesh(store, device);

  int sums = 0;
  for (int count : {1, 1000, 65536, 1 << 20}) {
    std::vector<float> data(count);
    const std::vector<float*> pointers{data.data()};
    gloo::AllreduceHalvingDoubling<float> halving(context, pointers, count);
    Ring ring(context, pointers, count);
    for (int round = 0; round < kRounds; round++) {
      check(halving, data, rank, "halving-doubling");
      check(ring, data, rank, "ring");
      ring.drain();
      sums += 2;
    }
  }

  // The peer may still wait for the acknowledgement of its last WRITE.
  store.set("done" + std::to_string(rank), {'1'});
  store.wait({"done0", "done1"}, std::chrono::seconds(60));
  std::printf("%d sums are right\n", sums);
  return 0;
}
