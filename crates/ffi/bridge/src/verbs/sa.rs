//! Path records of <infiniband/sa.h>.

use super::*;

/// The path record of programs.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_sa_path_rec {
    pub dgid: ibv_gid,
    pub sgid: ibv_gid,
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: i32,
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reversible: i32,
    pub numb_path: u8,
    pub pkey: u16,
    pub sl: u8,
    pub mtu_selector: u8,
    pub mtu: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}
layout!(ibv_sa_path_rec, 64, raw_traffic = 36, reversible = 48, pkey = 54, mtu = 58, preference = 63);
zeroed!(ibv_sa_path_rec);
