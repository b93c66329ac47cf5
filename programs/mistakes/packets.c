/* Messages that vanish: the sender's completion is a success, and the receiver gets nothing. */
#include "mistake.h"

/* The Q_Key of a datagram is not that of the receiving queue pair.
 *
 * shows: client: IBV_WC_SUCCESS (0)
 * shows: server: no completion
 * says: dropped: QP #: Q_Key # in a datagram from QP #, this QP has #; the sender must use that
 */
MISTAKE(wrong_qkey)
{
	struct request request;
	client.type = server.type = IBV_QPT_UD;
	connect_pair();
	post_receive(40 + 64);
	fill(&request, IBV_WR_SEND, 8);
	request.wr.wr.ud.remote_qkey = 0x22222222;
	post(&request);
	show_completion(&client);
	show_silence(&server);
}

/* The receive of a datagram has no room for the 40 bytes of the GRH.
 *
 * shows: client: IBV_WC_SUCCESS (0)
 * shows: server: no completion
 * says: dropped: QP #: datagram and GRH need 104 bytes, the receive has 64; add 40 bytes for the GRH
 */
MISTAKE(no_room_for_grh)
{
	client.type = server.type = IBV_QPT_UD;
	connect_pair();
	post_receive(64);
	post_plain(IBV_WR_SEND, 64);
	show_completion(&client);
	show_silence(&server);
}

/* No receive is posted for a datagram.
 *
 * shows: client: IBV_WC_SUCCESS (0)
 * shows: server: no completion
 * says: dropped: QP #: no receive posted for a datagram from QP #; post receives before it sends
 */
MISTAKE(datagram_without_receive)
{
	client.type = server.type = IBV_QPT_UD;
	connect_pair();
	post_plain(IBV_WR_SEND, 8);
	show_completion(&client);
	show_silence(&server);
}

/* A datagram is sent to a number that no queue pair has.
 *
 * shows: client: IBV_WC_SUCCESS (0)
 * shows: server: no completion
 * says: dropped: no QP # here for a packet from #: it was destroyed, or the sender has a wrong number
 */
MISTAKE(datagram_to_wrong_number)
{
	client.type = server.type = IBV_QPT_UD;
	connect_pair();
	post_receive(40 + 64);
	client.dest_qpn ^= 1;
	post_plain(IBV_WR_SEND, 8);
	show_completion(&client);
	show_silence(&server);
}

/* A datagram is sent to a queue pair that is still in state INIT.
 *
 * shows: client: IBV_WC_SUCCESS (0)
 * shows: server: no completion
 * says: dropped: QP # is in state INIT, which receives nothing; it must be in RTR or RTS
 */
MISTAKE(datagram_to_unready_peer)
{
	client.type = server.type = IBV_QPT_UD;
	create_pair();
	bring_to(&server, IBV_QPS_INIT);
	bring_to(&client, IBV_QPS_RTS);
	post_receive(40 + 64);
	post_plain(IBV_WR_SEND, 8);
	show_completion(&client);
	show_silence(&server);
}

/* A datagram is sent to a queue pair of another transport.
 *
 * shows: client: IBV_WC_SUCCESS (0)
 * shows: server: no completion
 * says: dropped: QP # is Rc, the packet is for Ud; both ends must have the same type
 */
MISTAKE(datagram_to_connected_queue_pair)
{
	client.type = IBV_QPT_UD;
	connect_pair();
	post_receive(40 + 64);
	post_plain(IBV_WR_SEND, 8);
	show_completion(&client);
	show_silence(&server);
}

/* No receive is posted on an unreliable connection.
 *
 * shows: client: IBV_WC_SUCCESS (0)
 * shows: server: no completion
 * says: dropped: QP #: no receive posted for a message from QP #; post receives before it sends
 */
MISTAKE(unreliable_without_receive)
{
	client.type = server.type = IBV_QPT_UC;
	connect_pair();
	post_plain(IBV_WR_SEND, 8);
	show_completion(&client);
	show_silence(&server);
}

/* A WRITE on an unreliable connection has a wrong rkey.
 *
 * shows: client: IBV_WC_SUCCESS (0)
 * shows: server: no completion
 * says: dropped: QP #: a message from QP # is refused: key # names no region here; check that the key is that of the
 *       region, and lkey and rkey are not exchanged
 */
MISTAKE(unreliable_with_wrong_rkey)
{
	struct request request;
	client.type = server.type = IBV_QPT_UC;
	connect_pair();
	fill(&request, IBV_WR_RDMA_WRITE, 8);
	request.wr.wr.rdma.rkey ^= 0x55555555;
	post(&request);
	show_completion(&client);
	show_silence(&server);
}
