/* What a program leaves behind: the report at the end of `ferroce run --explain` tells. */
#include "mistake.h"

/* Nothing is destroyed before the program ends.
 *
 * shows: client: IBV_WC_SUCCESS (0)
 * says: never destroyed: completion queues: 2, memory regions and windows: 2, protection domains: 2, queue pairs: 2
 */
MISTAKE(nothing_destroyed)
{
	connect_pair();
	post_plain(IBV_WR_RDMA_WRITE, 8);
	show_completion(&client);
}

/* A region is never deregistered, so its protection domain stays, too.
 *
 * shows: ibv_destroy_qp: success
 * shows: ibv_destroy_cq: success
 * says: never destroyed: memory regions and windows: 1, protection domains: 1
 */
MISTAKE(region_never_deregistered)
{
	create(&client);
	REFUSED(ibv_destroy_qp(client.qp));
	REFUSED(ibv_destroy_cq(client.cq));
}

/* Three messages arrive, and nobody polls for their receives.
 *
 * shows: client: IBV_WC_SUCCESS (0)
 * shows: client: IBV_WC_SUCCESS (0)
 * shows: client: IBV_WC_SUCCESS (0)
 * says: never polled: completions: 3
 */
MISTAKE(receives_never_polled)
{
	connect_pair();
	for (int i = 0; i < 3; i++)
		post_receive(64);
	for (int i = 0; i < 3; i++) {
		post_plain(IBV_WR_SEND, 8);
		show_completion(&client);
	}
}
