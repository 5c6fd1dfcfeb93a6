"""The prefix tree as flat arrays: a compressed trie over prompt token ids (paper section 5.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Nodes in depth-first order, node 0 the root (empty prefix). N = nodes, R = requests.

    A node stands for the tokens ``[start_depth, end_depth)`` of any prompt below it. Equal prompts (and the samples of one
    row) end in the same node. A subtree is the node range ``[node, subtree_end[node])``, and its requests are the slice
    ``[request_start[node], request_end[node])`` of ``request_order``, so sums over a subtree are differences of a prefix sum.

    parent         [N] int32, -1 for the root
    start_depth    [N] int32, tokens of the parent's whole path
    end_depth      [N] int32, tokens of the node's whole path (the root: 0)
    subtree_end    [N] int32
    request_order  [R] int64 request indices, depth first (equal prompts keep table order)
    request_start  [N] int64
    request_end    [N] int64
    node_of_request [R] int32, the node in which each request's prompt ends (indexed by request)
    """

    parent: NDArray[np.int32]
    start_depth: NDArray[np.int32]
    end_depth: NDArray[np.int32]
    subtree_end: NDArray[np.int32]
    request_order: NDArray[np.int64]
    request_start: NDArray[np.int64]
    request_end: NDArray[np.int64]
    node_of_request: NDArray[np.int32]

    @property
    def num_nodes(self) -> int:
        return len(self.parent)

    @property
    def num_requests_below(self) -> NDArray[np.int64]:
        """[N] requests in each subtree."""
        return self.request_end - self.request_start

    @property
    def num_unique_tokens(self) -> int:
        """Prompt tokens a perfect cache computes once each."""
        return int((self.end_depth - self.start_depth).sum(dtype=np.int64))
