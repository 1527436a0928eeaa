"""The random stream of vLLM's Gumbel sampling: a MurmurHash3 of (seed, position, token).

Every hash bit equals the Triton helpers' (`murmur3_hash32`, `murmur3_uniform32`,
`murmur3_uniform64`), so a seeded request draws the same uniforms as on a GPU.
"""

import numpy as np
from numba import njit

_SECOND_WORD = np.uint32(0x9E3779B9)
_LAST_BELOW_ONE = 1.0 - 2.0**-53


@njit(inline="always")
def _rotated(value, shift):
    return np.uint32(value << np.uint32(shift)) | np.uint32(value >> np.uint32(32 - shift))


@njit(inline="always")
def _mixed(state, key):
    key = np.uint32(key * np.uint32(0xCC9E2D51))
    key = np.uint32(_rotated(key, 15) * np.uint32(0x1B873593))
    state = _rotated(np.uint32(state ^ key), 13)
    return np.uint32(np.uint32(state * np.uint32(5)) + np.uint32(0xE6546B64))


@njit(inline="always")
def stream_state(seed, position, domain):
    """Hash state of one draw (int64 seed and position), before the token is mixed in."""
    state = _mixed(np.uint32(domain), np.uint32(seed & 0xFFFFFFFF))
    state = _mixed(state, np.uint32((seed >> 32) & 0xFFFFFFFF))
    return _mixed(state, np.uint32(position & 0xFFFFFFFF))


@njit(inline="always")
def token_hash(state, token):
    """The 32 random bits of `token` in a draw."""
    h = np.uint32(_mixed(state, np.uint32(token)) ^ np.uint32(16))
    h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    h = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(h ^ (h >> np.uint32(16)))


@njit(inline="always")
def _uniform32(bits):
    # Both halves convert to float32 exactly; the sum is (bits + 0.5) / 2**32, rounded once.
    high = np.float32(np.int32(bits >> np.uint32(16)))
    low = np.float32(np.int32(bits & np.uint32(0xFFFF)))
    return high * np.float32(2.0**-16) + (low + np.float32(0.5)) * np.float32(2.0**-32)


@njit(cache=True)
def fill_uniform32(seed, position, tokens, uniforms):
    """Fill float32 `uniforms` with the draws of `tokens` (integers), both of one length."""
    state = stream_state(seed, position, np.uint32(0))
    for i in range(tokens.size):
        uniforms[i] = _uniform32(token_hash(state, tokens[i]))


@njit(cache=True)
def fill_uniform64(seed, position, tokens, uniforms):
    """Like `fill_uniform32` for float64 `uniforms` of 53 random bits."""
    low_state = stream_state(seed, position, np.uint32(0))
    high_state = stream_state(seed, position, _SECOND_WORD)
    for i in range(tokens.size):
        low = np.uint64(token_hash(low_state, tokens[i]))
        high = np.uint64(token_hash(high_state, tokens[i]))
        bits = ((high << np.uint64(32)) | low) >> np.uint64(11)
        uniform = (np.float64(bits) + 0.5) * 2.0**-53
        uniforms[i] = _LAST_BELOW_ONE if uniform == 1.0 else uniform


@njit(cache=True)
def _survival_logs(uniforms, direct_logs):
    # -log(1 - u) in place of `direct_logs`, which holds log(max(1 - u, 2**-24)). The power series
    # keeps the precision that the subtraction loses for small u, the winning end of the noise.
    one = np.float32(1.0)
    for i in range(uniforms.size):
        u = uniforms[i]
        if u < np.float32(0.25):
            series = one / np.float32(8.0)
            for divisor in range(7, 0, -1):
                series = one / np.float32(divisor) + u * series
            direct_logs[i] = u * series
        else:
            direct_logs[i] = -direct_logs[i]


def gumbel_noise32(seed: int, position: int, tokens: np.ndarray) -> np.ndarray:
    """Gumbel noise of `tokens` at `position` of the stream `seed`, float32 of the same length."""
    uniforms = np.empty(tokens.size, np.float32)
    fill_uniform32(seed, position, tokens, uniforms)
    noise = np.maximum(np.float32(1.0) - uniforms, np.float32(2.0**-24))
    np.log(noise, out=noise)
    _survival_logs(uniforms, noise)
    np.log(noise, out=noise)
    return np.negative(noise, out=noise)


def gumbel_noise64(seed: int, position: int, tokens: np.ndarray) -> np.ndarray:
    """Like `gumbel_noise32` in float64."""
    uniforms = np.empty(tokens.size, np.float64)
    fill_uniform64(seed, position, tokens, uniforms)
    return -np.log(-np.log(uniforms))
