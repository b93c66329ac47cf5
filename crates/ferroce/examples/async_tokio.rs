//! Completions as futures.
//!
//!     cargo run --release --features tokio --example async_tokio

use ferroce::{AsyncCq, Device, Error, Pd, RcQp, Tokio};

/// Returns every message.
async fn echo(pd: Pd, qp: RcQp, cq: AsyncCq<Tokio>, rounds: u32) -> Result<(), Error> {
    let mut next = qp.recv(pd.buffer(64)?)?;
    for _ in 0..rounds {
        let message = cq.wait(next).await?.buffer;
        next = qp.recv(pd.buffer(64)?)?;
        cq.wait(qp.send(message)?).await?;
    }
    Ok(())
}

/// Sends messages and checks the replies.
async fn ask(pd: Pd, qp: RcQp, cq: AsyncCq<Tokio>, rounds: u32) -> Result<(), Error> {
    for n in 0..rounds {
        let answer = qp.recv(pd.buffer(64)?)?;
        let mut question = pd.buffer(64)?;
        question.set(&n.to_be_bytes())?;
        cq.wait(qp.send(question)?).await?;
        assert_eq!(*cq.wait(answer).await?.buffer, n.to_be_bytes());
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const ROUNDS: u32 = 1000;
    let device = Device::open()?;
    let pd = device.alloc_pd()?;
    let (cq_a, cq_b) = (device.create_cq(16)?, device.create_cq(16)?);
    let (a, b) = (pd.rc(&cq_a).create()?, pd.rc(&cq_b).create()?);
    a.connect(&b.endpoint()?)?;
    b.connect(&a.endpoint()?)?;

    // One thread runs two tasks. Neither blocks the other, because both wait for file descriptors.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let server = tokio::spawn(echo(pd.clone(), b, AsyncCq::new(&cq_b, &Tokio)?, ROUNDS));
        ask(pd, a, AsyncCq::new(&cq_a, &Tokio)?, ROUNDS).await?;
        server.await.expect("the server panicked")
    })?;
    println!("{ROUNDS} questions, {ROUNDS} answers");
    Ok(())
}
