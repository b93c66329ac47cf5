// A queue pair goes through its states. It is connected to itself: the peer's number and the own one are the same.

use ferroce::{
    AddressVector, AttrMask, Device, Error, Mtu, Outcome, Psn, QpAttr, QpState, RcQp, WcStatus, wr,
};

fn show(qp: &RcQp, what: &str) {
    println!("{:5}  {what}", format!("{:?}", qp.state()).to_uppercase());
}

fn main() -> Result<(), Error> {
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let region = pd.region(4096).register()?;
    let qp = pd.rc(&cq).create()?;
    // `create` has gone to INIT, and `connect` would go to RTS. This program does each step itself.
    let to = |state| QpAttr { state, port: 1, ..QpAttr::default() };
    qp.modify(&to(QpState::Reset), AttrMask::STATE)?;
    show(&qp, "nothing can be posted");

    let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    qp.modify(&to(QpState::Init), mask)?;
    qp.post_recv(&[wr::recv(1, &[region.sge(..64)?])])?;
    show(&qp, "receives can be posted");

    // Ready to receive: it must know who sends, and with which first packet sequence number (PSN).
    let rtr = QpAttr {
        dest_qpn: qp.qpn(),
        rq_psn: Psn::new(7),
        path_mtu: Mtu::B1024,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
        av: AddressVector { dgid: device.gids()[0].gid, hop_limit: 64, port: 1, ..AddressVector::default() },
        ..to(QpState::Rtr)
    };
    let path = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let reads = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    qp.modify(&rtr, AttrMask::STATE | path | reads)?;
    show(&qp, "messages can arrive");

    // Ready to send: the own first PSN, and how often it retries.
    let rts = QpAttr {
        sq_psn: Psn::new(7),
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: 1,
        ..to(QpState::Rts)
    };
    let retries = AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY;
    qp.modify(&rts, AttrMask::STATE | AttrMask::SQ_PSN | AttrMask::MAX_QP_RD_ATOMIC | retries)?;
    qp.send_from(2, &[region.sge(..5)?])?;
    cq.wait()?.ok()?;
    cq.wait()?.ok()?;
    show(&qp, "a message was sent and received");

    // Error: what is still posted is flushed.
    qp.post_recv(&[wr::recv(3, &[region.sge(..64)?])])?;
    qp.modify(&to(QpState::Err), AttrMask::STATE)?;
    show(&qp, "a posted receive is flushed:");
    let done = cq.wait()?;
    let flushed = done.status == WcStatus::WrFlushErr;
    println!("       wr_id {}: {}", done.wr_id, if flushed { "flushed" } else { "something else" });

    qp.modify(&to(QpState::Reset), AttrMask::STATE)?;
    show(&qp, "as new");
    Ok(())
}
