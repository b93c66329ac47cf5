//! Congestion control behind one small trait.
