// The peer of `cargo xtask bench fabric-sim --ns3`: simulates the network on standard input with ns-3.
//
// The input comes from the scenario that ferroce simulates: nodes, links, flows, and for each flow the nodes that its data and its ACKs
// pass. Everything that would make the models differ or ns-3 slower is left out: handshakes in the completion times, queue discs above
// the device queue, route lookups beyond an index, trace sources.
//
// Input, one word or number after the other:
//   hosts NODES_THAT_ARE_HOSTS nodes NODES packet PAYLOAD_BYTES mark BYTES
//   link A B BITS_PER_SECOND DELAY_NS
//   flow BYTES START_PS WINDOW_PACKETS COUNT NODE… COUNT NODE…
// Output: one line of JSON.

#include <ns3/core-module.h>
#include <ns3/internet-module.h>
#include <ns3/network-module.h>
#include <ns3/point-to-point-module.h>
#include <ns3/traffic-control-module.h>

#include <ctime>
#include <iostream>
#include <map>
#include <vector>

using namespace ns3;

namespace
{

constexpr uint16_t SENDER_PORT = 10000;
constexpr uint16_t RECEIVER_PORT = 30000;
constexpr size_t MAX_FLOWS = 20000;
/// Time of the first flow. Connections are opened before it, so that handshakes are not part of completion times.
const Time ORIGIN = MilliSeconds(100);
/// Size of a socket's send buffer.
constexpr uint32_t SEND_BUFFER = 1 << 21;

uint64_t g_hops = 0;
uint64_t g_marks = 0;
uint64_t g_drops = 0;

/// The queue of a switch port: marks a packet at dequeue if it leaves more than K bytes behind.
class MarkingQueue : public Queue<Packet>
{
  public:
    static TypeId GetTypeId()
    {
        static TypeId id =
            TypeId("ferroce::MarkingQueue").SetParent<Queue<Packet>>().AddConstructor<MarkingQueue>();
        return id;
    }

    bool Enqueue(Ptr<Packet> packet) override
    {
        return DoEnqueue(GetContainer().end(), packet);
    }

    Ptr<Packet> Dequeue() override
    {
        Ptr<Packet> packet = DoDequeue(GetContainer().begin());
        if (packet && GetNBytes() > s_threshold)
        {
            Mark(packet);
        }
        return packet;
    }

    Ptr<Packet> Remove() override
    {
        return DoRemove(GetContainer().begin());
    }

    Ptr<const Packet> Peek() const override
    {
        return DoPeek(GetContainer().begin());
    }

    static uint32_t s_threshold;

  private:
    static void Mark(Ptr<Packet> packet)
    {
        PppHeader ppp;
        Ipv4Header ip;
        packet->RemoveHeader(ppp);
        packet->RemoveHeader(ip);
        // ns-3 sends ACKs of DCTCP as ECN-capable; ferroce's are not, and a mark on one has no effect in either.
        if (ip.GetEcn() != Ipv4Header::ECN_NotECT && packet->GetSize() > 100)
        {
            ip.SetEcn(Ipv4Header::ECN_CE);
            g_marks++;
        }
        packet->AddHeader(ip);
        packet->AddHeader(ppp);
    }
};

uint32_t MarkingQueue::s_threshold = 0;
NS_OBJECT_ENSURE_REGISTERED(MarkingQueue);

/// Forwards by flow and direction; the ports of the TCP header name both.
class PinnedRouting : public Ipv4RoutingProtocol
{
  public:
    static TypeId GetTypeId()
    {
        static TypeId id = TypeId("ferroce::PinnedRouting").SetParent<Ipv4RoutingProtocol>();
        return id;
    }

    PinnedRouting(Ipv4Address own, size_t flows)
        : m_own(own),
          m_routes{std::vector<Ptr<Ipv4Route>>(flows), std::vector<Ptr<Ipv4Route>>(flows)}
    {
    }

    void Pin(uint32_t flow, bool data, Ptr<NetDevice> device)
    {
        Ptr<Ipv4Route> route = Create<Ipv4Route>();
        route->SetSource(m_own);
        route->SetGateway(Ipv4Address::GetZero());
        route->SetOutputDevice(device);
        m_routes[data][flow] = route;
        m_first = route;
    }

    /// Only hosts send, and a host has one device.
    Ptr<Ipv4Route> RouteOutput(Ptr<Packet>, const Ipv4Header&, Ptr<NetDevice>, Socket::SocketErrno& error) override
    {
        error = Socket::ERROR_NOTERROR;
        return m_first;
    }

    bool RouteInput(Ptr<const Packet> packet,
                    const Ipv4Header& header,
                    Ptr<const NetDevice> device,
                    UnicastForwardCallback forward,
                    MulticastForwardCallback,
                    LocalDeliverCallback deliver,
                    ErrorCallback) override
    {
        g_hops++;
        if (header.GetDestination() == m_own)
        {
            deliver(packet, header, m_ipv4->GetInterfaceForDevice(device));
            return true;
        }
        uint8_t ports[4];
        packet->CopyData(ports, sizeof ports);
        uint16_t to = ports[2] << 8 | ports[3];
        bool data = to >= RECEIVER_PORT;
        forward(m_routes[data][to - (data ? RECEIVER_PORT : SENDER_PORT)], packet, header);
        return true;
    }

    void NotifyInterfaceUp(uint32_t) override {}
    void NotifyInterfaceDown(uint32_t) override {}
    void NotifyAddAddress(uint32_t, Ipv4InterfaceAddress) override {}
    void NotifyRemoveAddress(uint32_t, Ipv4InterfaceAddress) override {}
    void SetIpv4(Ptr<Ipv4> ipv4) override
    {
        m_ipv4 = ipv4;
    }
    void PrintRoutingTable(Ptr<OutputStreamWrapper>, Time::Unit) const override {}

  private:
    Ipv4Address m_own;
    Ptr<Ipv4> m_ipv4;
    Ptr<Ipv4Route> m_first;
    std::vector<Ptr<Ipv4Route>> m_routes[2];
};

Ipv4Address AddressOf(uint32_t node)
{
    return Ipv4Address((10u << 24) + 1 + node);
}

struct Flow
{
    uint64_t bytes;
    uint64_t startPs;
    uint32_t window;
    std::vector<uint32_t> data;
    std::vector<uint32_t> acks;
    Ptr<Socket> sender;
    Ptr<Socket> listener;
    bool established = false;
    /// Bytes that the socket has accepted.
    uint64_t written = 0;
    SequenceNumber32 lastByte;
    int64_t finishedPs = -1;
};

std::vector<Flow> g_flows;
size_t g_left;

void Drain(Ptr<Socket> socket)
{
    while (socket->Recv())
    {
    }
}

void Accept(Ptr<Socket> socket, const Address&)
{
    socket->SetRecvCallback(MakeCallback(&Drain));
}

/// Passes as many bytes to the socket as it accepts.
void Write(Flow* flow, Ptr<Socket> socket, uint32_t)
{
    while (flow->written < flow->bytes && Simulator::Now() >= ORIGIN)
    {
        uint32_t part = std::min<uint64_t>({flow->bytes - flow->written, socket->GetTxAvailable(), 1u << 16});
        if (part == 0)
        {
            return;
        }
        flow->written += socket->Send(Create<Packet>(part));
    }
}

/// The highest ACK number that the sender has received; the data begins at 1.
void OnAck(Flow* flow, SequenceNumber32, SequenceNumber32 highest)
{
    if (flow->finishedPs < 0 && uint64_t(highest.GetValue()) > flow->bytes)
    {
        flow->finishedPs = (Simulator::Now() - ORIGIN).GetPicoSeconds();
        if (--g_left == 0)
        {
            Simulator::Stop();
        }
    }
}

void Start(Flow* flow)
{
    NS_ABORT_MSG_UNLESS(flow->established, "a connection was not established in time");
    flow->sender->SetSendCallback(MakeBoundCallback(&Write, flow));
    Write(flow, flow->sender, 0);
}

void Established(Flow* flow, Ptr<Socket>)
{
    flow->established = true;
}

void Open(Flow* flow, uint32_t number, NodeContainer nodes)
{
    uint32_t from = flow->data.front();
    uint32_t to = flow->data.back();
    flow->listener = Socket::CreateSocket(nodes.Get(to), TcpSocketFactory::GetTypeId());
    flow->listener->Bind(InetSocketAddress(AddressOf(to), RECEIVER_PORT + number));
    flow->listener->Listen();
    flow->listener->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address&>(), MakeCallback(&Accept));
    flow->sender = Socket::CreateSocket(nodes.Get(from), TcpSocketFactory::GetTypeId());
    uint32_t packets = flow->window;
    flow->sender->SetAttribute("InitialCwnd", UintegerValue(packets));
    UintegerValue segment;
    flow->sender->GetAttribute("SegmentSize", segment);
    // No slow start.
    flow->sender->SetAttribute("InitialSlowStartThreshold", UintegerValue(packets * segment.Get()));
    flow->sender->TraceConnectWithoutContext("HighestRxAck", MakeBoundCallback(&OnAck, flow));
    flow->sender->SetConnectCallback(MakeBoundCallback(&Established, flow), MakeNullCallback<void, Ptr<Socket>>());
    flow->sender->Bind(InetSocketAddress(AddressOf(from), SENDER_PORT + number));
    flow->sender->Connect(InetSocketAddress(AddressOf(to), RECEIVER_PORT + number));
}

double CpuSeconds()
{
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

std::vector<uint32_t> ReadNodes()
{
    size_t count = 0;
    std::cin >> count;
    NS_ABORT_MSG_IF(count > 64, "a way has more than 64 nodes");
    std::vector<uint32_t> nodes(count);
    for (auto& node : nodes)
    {
        std::cin >> node;
    }
    return nodes;
}

void CountDrop(Ptr<const Packet>)
{
    g_drops++;
}

} // namespace

int main(int argc, char** argv)
{
    Time::SetResolution(Time::PS);
    std::string scheduler = "ns3::MapScheduler";
    CommandLine command;
    command.AddValue("scheduler", "type of the event list", scheduler);
    command.Parse(argc, argv);
    ObjectFactory factory;
    factory.SetTypeId(scheduler);
    Simulator::SetScheduler(factory);

    std::string word;
    uint32_t hosts = 0;
    uint32_t count = 0;
    uint32_t payload = 0;
    struct Link
    {
        uint32_t a, b;
        uint64_t rate, delayNs;
    };
    std::vector<Link> links;
    while (std::cin >> word)
    {
        if (word == "hosts")
        {
            std::cin >> hosts;
        }
        else if (word == "nodes")
        {
            std::cin >> count;
        }
        else if (word == "packet")
        {
            std::cin >> payload;
        }
        else if (word == "mark")
        {
            std::cin >> MarkingQueue::s_threshold;
        }
        else if (word == "link")
        {
            Link link{};
            std::cin >> link.a >> link.b >> link.rate >> link.delayNs;
            links.push_back(link);
        }
        else if (word == "flow")
        {
            Flow flow{};
            std::cin >> flow.bytes >> flow.startPs >> flow.window;
            flow.data = ReadNodes();
            flow.acks = ReadNodes();
            g_flows.push_back(flow);
        }
        NS_ABORT_MSG_UNLESS(std::cin, "the value after " << word << " is missing");
    }
    NS_ABORT_MSG_IF(g_flows.empty() || g_flows.size() > MAX_FLOWS, "there must be 1 to " << MAX_FLOWS << " flows");

    Config::SetDefault("ns3::TcpL4Protocol::SocketType", StringValue("ns3::TcpDctcp"));
    // Reduces the window immediately. The default reduces it over a round trip (PRR).
    Config::SetDefault("ns3::TcpL4Protocol::RecoveryType", StringValue("ns3::TcpClassicRecovery"));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(payload));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(1));
    Config::SetDefault("ns3::TcpSocket::TcpNoDelay", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(SEND_BUFFER));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(SEND_BUFFER));
    Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(false));
    Config::SetDefault("ns3::TcpDctcp::DctcpShiftG", DoubleValue(1.0 / 16));
    Config::SetDefault("ns3::TcpDctcp::DctcpAlphaOnInit", DoubleValue(1.0));

    NodeContainer nodes;
    nodes.Create(count);
    std::vector<Ptr<PinnedRouting>> routing;
    for (uint32_t node = 0; node < count; node++)
    {
        routing.push_back(CreateObject<PinnedRouting>(AddressOf(node), g_flows.size()));
        auto ipv4 = CreateObject<Ipv4L3Protocol>();
        nodes.Get(node)->AggregateObject(ipv4);
        ipv4->SetRoutingProtocol(routing.back());
        nodes.Get(node)->AggregateObject(CreateObject<ArpL3Protocol>());
        nodes.Get(node)->AggregateObject(CreateObject<Icmpv4L4Protocol>());
        nodes.Get(node)->AggregateObject(CreateObject<TrafficControlLayer>());
        if (node < hosts)
        {
            nodes.Get(node)->AggregateObject(CreateObject<TcpL4Protocol>());
        }
    }
    std::map<std::pair<uint32_t, uint32_t>, Ptr<NetDevice>> devices;
    for (const Link& link : links)
    {
        auto channel = CreateObject<PointToPointChannel>();
        channel->SetAttribute("Delay", TimeValue(NanoSeconds(link.delayNs)));
        for (auto [own, peer] : {std::pair(link.a, link.b), std::pair(link.b, link.a)})
        {
            auto device = CreateObject<PointToPointNetDevice>();
            device->SetAddress(Mac48Address::Allocate());
            device->SetDataRate(DataRate(link.rate));
            device->SetAttribute("Mtu", UintegerValue(9000));
            Ptr<Queue<Packet>> queue;
            if (own < hosts)
            {
                queue = CreateObject<DropTailQueue<Packet>>();
            }
            else
            {
                queue = CreateObject<MarkingQueue>();
            }
            queue->SetMaxSize(QueueSize("64MB"));
            queue->TraceConnectWithoutContext("Drop", MakeCallback(&CountDrop));
            device->SetQueue(queue);
            nodes.Get(own)->AddDevice(device);
            device->Attach(channel);
            auto ipv4 = nodes.Get(own)->GetObject<Ipv4>();
            uint32_t interface = ipv4->AddInterface(device);
            ipv4->AddAddress(interface, Ipv4InterfaceAddress(AddressOf(own), Ipv4Mask("255.0.0.0")));
            ipv4->SetUp(interface);
            devices[{own, peer}] = device;
        }
    }
    for (uint32_t number = 0; number < g_flows.size(); number++)
    {
        Flow& flow = g_flows[number];
        for (bool data : {false, true})
        {
            const auto& way = data ? flow.data : flow.acks;
            for (size_t at = 0; at + 1 < way.size(); at++)
            {
                auto device = devices.find({way[at], way[at + 1]});
                NS_ABORT_MSG_IF(device == devices.end(), "the way of flow " << number << " uses a link that does not exist");
                routing[way[at]]->Pin(number, data, device->second);
            }
        }
        Simulator::Schedule(ORIGIN * (number + 1) / (2 * (g_flows.size() + 1)), &Open, &flow, number, nodes);
        Simulator::Schedule(ORIGIN + PicoSeconds(flow.startPs), &Start, &flow);
    }
    g_left = g_flows.size();

    // Sockets exchange probes and ACKs in the first half of the time before the origin. These are not counted.
    Simulator::Stop(ORIGIN - NanoSeconds(1));
    Simulator::Run();
    g_hops = g_marks = 0;
    double start = CpuSeconds();
    Simulator::Run();
    double cpu = CpuSeconds() - start;

    std::cout << "{\"cpu_s\":" << cpu << ",\"packet_hops\":" << g_hops << ",\"marks\":" << g_marks
              << ",\"drops\":" << g_drops << ",\"finished_ps\":[";
    for (size_t at = 0; at < g_flows.size(); at++)
    {
        std::cout << (at ? "," : "") << g_flows[at].finishedPs;
    }
    std::cout << "]}" << std::endl;
    return 0;
}
