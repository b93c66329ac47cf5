/* Verbs that no foreign program in the tests calls. */
#include "pair.h"
#include <endian.h>

static void addresses(struct ibv_context *context, struct ibv_pd *pd) {
    RETURNS(0, ibv_get_pkey_index(context, 1, htobe16(0xffff)));
    CHECK(ibv_get_pkey_index(context, 1, htobe16(0x1234)) < 0);

    /* An address handle made from a datagram leads back to its sender. */
    union ibv_gid gid;
    MUST(ibv_query_gid(context, 1, 0, &gid) == 0);
    uint8_t grh[40] = {0};
    int is_ipv4 = gid.global.subnet_prefix == 0;
    if (is_ipv4) {
        grh[20] = 0x45;
        grh[23] = 92; /* total length */
        grh[28] = 64; /* TTL */
        grh[29] = 17; /* UDP */
        memcpy(grh + 32, gid.raw + 12, 4);
        memcpy(grh + 36, gid.raw + 12, 4);
        /* Only a valid checksum distinguishes an IPv4 header from the second half of an IPv6 one. */
        uint32_t sum = 0;
        for (int i = 20; i < 40; i += 2)
            sum += (uint32_t)grh[i] << 8 | grh[i + 1];
        sum = (sum & 0xffff) + (sum >> 16);
        sum = ~((sum & 0xffff) + (sum >> 16));
        grh[30] = (uint8_t)(sum >> 8);
        grh[31] = (uint8_t)sum;
    } else {
        grh[0] = 0x60;
        grh[6] = 17;
        grh[7] = 64;
        memcpy(grh + 8, &gid, 16);
        memcpy(grh + 24, &gid, 16);
    }
    struct ibv_wc wc = {.wc_flags = IBV_WC_GRH, .sl = 0, .src_qp = 5};
    struct ibv_ah_attr attr;
    memset(&attr, 0xaa, sizeof attr);
    RETURNS(0, ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)grh, &attr));
    CHECK(attr.is_global == 1 && attr.port_num == 1 && attr.grh.sgid_index == 0);
    CHECK(memcmp(&attr.grh.dgid, &gid, sizeof gid) == 0);
    struct ibv_ah *ah = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)grh, 1);
    CHECK(ah != NULL);
    if (ah != NULL)
        RETURNS(0, ibv_destroy_ah(ah));
}

static void regions(struct ibv_pd *pd) {
    static char bytes[8192];
    /* The header defines a macro of this name; old programs call the symbol. */
    struct ibv_mr *mr = (ibv_reg_mr_iova)(pd, bytes + 5, 4096, 0x100000005, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr != NULL && mr->addr == bytes + 5 && mr->length == 4096);
    if (mr != NULL)
        RETURNS(0, ibv_dereg_mr(mr));
}

static void clock_and_identity(struct ibv_context *context) {
    struct ibv_device_attr_ex device = {0};
    struct ibv_query_device_ex_input input = {0};
    RETURNS(0, ibv_query_device_ex(context, &input, &device));
    input.comp_mask = 1;
    RETURNS(EINVAL, ibv_query_device_ex(context, &input, &device));
    struct ibv_values_ex first = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK}, second = first;
    RETURNS(0, ibv_query_rt_values_ex(context, &first));
    RETURNS(0, ibv_query_rt_values_ex(context, &second));
    CHECK(second.raw_clock.tv_sec > first.raw_clock.tv_sec || (second.raw_clock.tv_sec == first.raw_clock.tv_sec &&
        second.raw_clock.tv_nsec >= first.raw_clock.tv_nsec));
    CHECK(ibv_get_device_guid(context->device) != 0);
    CHECK(ibv_get_device_guid(context->device) == device.orig_attr.node_guid);
    CHECK(strcmp(ibv_get_device_name(context->device), "ferroce0") == 0);
}

int main(void) {
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    MUST(pd != NULL);
    addresses(context, pd);
    regions(pd);
    clock_and_identity(context);
    RETURNS(0, ibv_dealloc_pd(pd));
    RETURNS(0, ibv_close_device(context));
    return verdict();
}
