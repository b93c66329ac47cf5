//! Where the processes of one user and one network namespace meet: who holds which slot, and in which order the kernel
//! knows their sockets.
