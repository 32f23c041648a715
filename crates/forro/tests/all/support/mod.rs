//! Forró implemented directly from its description, one word after the other, for any even number of rounds. This
//! implementation shares no code with the crate.

/// The word indices of the eight quarter rounds of a double round, each in the order a, b, c, d and the pollen e.
const DOUBLE_ROUND: [[usize; 5]; 8] = [
    [0, 4, 8, 12, 3],
    [1, 5, 9, 13, 0],
    [2, 6, 10, 14, 1],
    [3, 7, 11, 15, 2],
    [0, 5, 10, 15, 3],
    [1, 6, 11, 12, 0],
    [2, 7, 8, 13, 1],
    [3, 4, 9, 14, 2],
];

pub fn permute(mut v: [u32; 16], rounds: usize) -> [u32; 16] {
    for _ in 0..rounds / 2 {
        for [a, b, c, d, e] in DOUBLE_ROUND {
            v[d] = v[d].wrapping_add(v[e]);
            v[c] ^= v[d];
            v[b] = v[b].wrapping_add(v[c]);
            v[b] = v[b].rotate_left(10);
            v[a] = v[a].wrapping_add(v[b]);
            v[e] ^= v[a];
            v[d] = v[d].wrapping_add(v[e]);
            v[d] = v[d].rotate_left(27);
            v[c] = v[c].wrapping_add(v[d]);
            v[b] ^= v[c];
            v[a] = v[a].wrapping_add(v[b]);
            v[a] = v[a].rotate_left(8);
        }
    }
    v
}

pub fn block_of_words(v: [u32; 16], rounds: usize) -> Vec<u8> {
    let words = permute(v, rounds);
    words
        .iter()
        .zip(v)
        .flat_map(|(word, input)| word.wrapping_add(input).to_le_bytes())
        .collect()
}

fn word(bytes: &[u8], index: usize) -> u32 {
    u32::from_le_bytes(bytes[4 * index..4 * index + 4].try_into().unwrap())
}

/// Returns the matrix before the rounds; `input` has its words 4, 5, 12 and 13.
pub fn matrix(key: &[u8], input: [u32; 4]) -> [u32; 16] {
    let mut v = [0; 16];
    for index in 0..4 {
        v[index] = word(key, index);
        v[index + 8] = word(key, index + 4);
    }
    [v[4], v[5], v[12], v[13]] = input;
    for (index, bytes) in [6, 7, 14, 15].into_iter().zip(b"voltadaasabranca".chunks(4)) {
        v[index] = u32::from_le_bytes(bytes.try_into().unwrap());
    }
    v
}

pub fn block(key: &[u8], counter: u64, nonce: &[u8], rounds: usize) -> Vec<u8> {
    let input = [
        counter as u32,
        (counter >> 32) as u32,
        word(nonce, 0),
        word(nonce, 1),
    ];
    block_of_words(matrix(key, input), rounds)
}
