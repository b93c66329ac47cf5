//! Sockets over connections. Not there yet: every call answers ENOSYS.

use crate::exports::export;
use crate::guard::absent;

export! {
    "raccept" => absent,
    "rbind" => absent,
    "rclose" => absent,
    "rconnect" => absent,
    "rfcntl" => absent,
    "rgetpeername" => absent,
    "rgetsockname" => absent,
    "rgetsockopt" => absent,
    "riomap" => absent,
    "riounmap" => absent,
    "riowrite" => absent,
    "rlisten" => absent,
    "rpoll" => absent,
    "rread" => absent,
    "rreadv" => absent,
    "rrecv" => absent,
    "rrecvfrom" => absent,
    "rrecvmsg" => absent,
    "rselect" => absent,
    "rsend" => absent,
    "rsendmsg" => absent,
    "rsendto" => absent,
    "rsetsockopt" => absent,
    "rshutdown" => absent,
    "rsocket" => absent,
    "rwrite" => absent,
    "rwritev" => absent,
}
