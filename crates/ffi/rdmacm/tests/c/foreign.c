// Runs with a libibverbs that is not ferroce's: every call that needs the device fails with ENODEV.
#include "cm.h"

int main(void)
{
	struct rdma_cm_id *id;
	int count = 7;
	CHECK_NULL(rdma_create_event_channel(), ENODEV);
	REFUSED(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), ENODEV);
	CHECK_NULL(rdma_get_devices(&count), ENODEV);
	CHECK(strcmp(rdma_event_str(RDMA_CM_EVENT_REJECTED), "RDMA_CM_EVENT_REJECTED") == 0);
	return 0;
}
