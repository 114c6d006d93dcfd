//! The few words between the supervisor and its pump. Both are the same program, so there is no version.

use fairlead_supervisor::wire::RECORD_LEN;

/// Take the pipes of one entry over. Descriptors: slot, pipe, spool file, then pipe and spool file of
/// stderr if separate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Add {
    pub(crate) index: u32,
    pub(crate) generation: u32,
    pub(crate) quota: u64,
    pub(crate) separate: bool,
}

/// From the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToPump {
    Add(Add),
    Remove {
        index: u32,
        generation: u32,
    },
    /// Say that you live.
    Ping,
}

/// From the pump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FromPump {
    /// Every stream of the entry ended and is in its file.
    Drained { index: u32, generation: u32 },
    /// It lives: the answer to a ping, and sent in the midst of much work.
    Alive,
}

fn number(record: &[u8], at: usize) -> u32 {
    let mut bytes = [0u8; 4];
    bytes.copy_from_slice(&record[at..at + 4]);
    u32::from_le_bytes(bytes)
}

fn record(kind: u8, index: u32, generation: u32) -> [u8; RECORD_LEN] {
    let mut record = [0u8; RECORD_LEN];
    record[0] = kind;
    record[4..8].copy_from_slice(&index.to_le_bytes());
    record[8..12].copy_from_slice(&generation.to_le_bytes());
    record
}

impl ToPump {
    pub(crate) fn encode(&self) -> [u8; RECORD_LEN] {
        match self {
            ToPump::Add(add) => {
                let mut record = record(1, add.index, add.generation);
                record[1] = add.separate.into();
                record[16..24].copy_from_slice(&add.quota.to_le_bytes());
                record
            }
            ToPump::Remove { index, generation } => record(2, *index, *generation),
            ToPump::Ping => record(4, 0, 0),
        }
    }

    pub(crate) fn decode(record: &[u8]) -> Option<ToPump> {
        let (index, generation) = whole(record)?;
        let mut quota = [0u8; 8];
        quota.copy_from_slice(&record[16..24]);
        match record[0] {
            1 => Some(ToPump::Add(Add {
                index,
                generation,
                quota: u64::from_le_bytes(quota),
                separate: record[1] != 0,
            })),
            2 => Some(ToPump::Remove { index, generation }),
            4 => Some(ToPump::Ping),
            _ => None,
        }
    }
}

impl FromPump {
    pub(crate) fn encode(&self) -> [u8; RECORD_LEN] {
        match self {
            FromPump::Drained { index, generation } => record(3, *index, *generation),
            FromPump::Alive => record(5, 0, 0),
        }
    }

    pub(crate) fn decode(record: &[u8]) -> Option<FromPump> {
        let (index, generation) = whole(record)?;
        match record[0] {
            3 => Some(FromPump::Drained { index, generation }),
            5 => Some(FromPump::Alive),
            _ => None,
        }
    }
}

fn whole(record: &[u8]) -> Option<(u32, u32)> {
    (record.len() == RECORD_LEN).then(|| (number(record, 4), number(record, 8)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip() {
        let add = Add {
            index: 7,
            generation: 9,
            quota: 1 << 40,
            separate: true,
        };
        for word in [
            ToPump::Add(add),
            ToPump::Remove {
                index: 1,
                generation: 2,
            },
            ToPump::Ping,
        ] {
            assert_eq!(ToPump::decode(&word.encode()), Some(word));
        }
        let drained = FromPump::Drained {
            index: 3,
            generation: 4,
        };
        for told in [drained, FromPump::Alive] {
            assert_eq!(FromPump::decode(&told.encode()), Some(told));
            assert_eq!(ToPump::decode(&told.encode()), None);
        }
        assert_eq!(FromPump::decode(&[3; 10]), None);
    }
}
