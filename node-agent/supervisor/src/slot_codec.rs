//! One checksummed block of a slot: magic (4), version (2), kind (2), checksum (8), fields.
//!
//! The checksum is 64-bit FNV-1a over the block without the checksum itself (Fowler, Noll, Vo;
//! draft-eastlake-fnv). It detects torn writes, not an attacker: the file is the agent's own.

use crate::slot::{BLOCK_LEN, TEXT_MAX};

const MAGIC: [u8; 4] = *b"FLSL";
const VERSION: u16 = 1;
const SUM_AT: usize = 8;
const FIELDS_AT: usize = 16;

fn checksum(block: &[u8]) -> u64 {
    let covered = block[..SUM_AT].iter().chain(&block[FIELDS_AT..]);
    covered.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Fills a block; the layouts in the parent module never exceed it.
pub(crate) struct BlockWriter {
    block: [u8; BLOCK_LEN],
    at: usize,
}

impl BlockWriter {
    pub(crate) fn new(kind: u16) -> BlockWriter {
        let mut block = [0u8; BLOCK_LEN];
        block[..4].copy_from_slice(&MAGIC);
        block[4..6].copy_from_slice(&VERSION.to_le_bytes());
        block[6..8].copy_from_slice(&kind.to_le_bytes());
        BlockWriter { block, at: FIELDS_AT }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.block[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    pub(crate) fn u8(&mut self, v: u8) {
        self.bytes(&[v]);
    }

    pub(crate) fn u32(&mut self, v: u32) {
        self.bytes(&v.to_le_bytes());
    }

    pub(crate) fn i32(&mut self, v: i32) {
        self.bytes(&v.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, v: u64) {
        self.bytes(&v.to_le_bytes());
    }

    /// A text of at most [`TEXT_MAX`] bytes, which the caller has checked.
    pub(crate) fn text(&mut self, text: &str) {
        let bytes = &text.as_bytes()[..text.len().min(TEXT_MAX)];
        self.bytes(&(bytes.len() as u16).to_le_bytes());
        self.bytes(bytes);
    }

    pub(crate) fn finish(mut self) -> [u8; BLOCK_LEN] {
        let sum = checksum(&self.block);
        self.block[SUM_AT..FIELDS_AT].copy_from_slice(&sum.to_le_bytes());
        self.block
    }
}

/// Reads the fields of a valid block in the order they were written.
pub(crate) struct BlockReader<'a> {
    block: &'a [u8],
    at: usize,
}

impl<'a> BlockReader<'a> {
    /// `None` unless the block is whole, ours, and of that kind.
    pub(crate) fn open(block: &'a [u8], kind: u16) -> Option<BlockReader<'a>> {
        let valid = block.len() == BLOCK_LEN
            && block[..4] == MAGIC
            && block[4..6] == VERSION.to_le_bytes()
            && block[6..8] == kind.to_le_bytes()
            && block[SUM_AT..FIELDS_AT] == checksum(block).to_le_bytes();
        valid.then_some(BlockReader { block, at: FIELDS_AT })
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0u8; N];
        out.copy_from_slice(&self.block[self.at..self.at + N]);
        self.at += N;
        out
    }

    pub(crate) fn u8(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(crate) fn i32(&mut self) -> i32 {
        i32::from_le_bytes(self.array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        let len = usize::from(u16::from_le_bytes(self.array()));
        let bytes = self.block.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        String::from_utf8(bytes.to_vec()).ok()
    }
}
