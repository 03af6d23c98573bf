"""The shape of Qwen3-VL's vision tower and projector: the sizes of its config, and the tensors that follow."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

_CONFIG_NAMES = {
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "heads": "num_heads",
    "out": "out_hidden_size",
    "merge": "spatial_merge_size",
    "positions": "num_position_embeddings",
    "deepstack_layers": "deepstack_visual_indexes",
}


class VisionShape(msgspec.Struct, frozen=True, kw_only=True, rename=_CONFIG_NAMES):
    """A vision tower with its projector, as `vision_config` has their sizes.

    hidden, out: widths of the tower, and of the language model that its features go to. merge: patches that become one
    token, on each axis. positions: learned ones. deepstack_layers: layers whose features go to the language model too,
    each by its own projector.
    """

    depth: int
    hidden: int
    intermediate: int
    heads: int
    out: int
    patch_size: int
    temporal_patch_size: int
    in_channels: int = 3
    merge: int
    positions: int
    deepstack_layers: tuple[int, ...]

    @property
    def patch_values(self) -> int:
        """Numbers in a patch."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def deepstack(self) -> int:
        """How many layers have features that go to the language model too."""
        return len(self.deepstack_layers)

    @property
    def patches_per_token(self) -> int:
        """Patches that become one token."""
        return self.merge**2

    @property
    def merged(self) -> int:
        """The width of merged patches."""
        return self.hidden * self.patches_per_token

    @property
    def tower_linears(self) -> dict[str, tuple[int, int]]:
        """The linear modules of one block: (in, out) features of each, by its name in the block."""
        return {
            "attn.qkv": (self.hidden, 3 * self.hidden),
            "attn.proj": (self.hidden, self.hidden),
            "mlp.linear_fc1": (self.hidden, self.intermediate),
            "mlp.linear_fc2": (self.intermediate, self.hidden),
        }

    @property
    def projector_linears(self) -> dict[str, tuple[int, int]]:
        """The linear modules of one merger: (in, out) features of each, by its name in the merger."""
        return {"linear_fc1": (self.merged, self.merged), "linear_fc2": (self.merged, self.out)}

    @property
    def mergers(self) -> int:
        """How many there are: the last layer's and one for each deepstack layer."""
        return 1 + self.deepstack

    @property
    def tower_linear_parameters(self) -> int:
        """Weights of the linear modules of all blocks, without biases."""
        return self.depth * sum(rows * columns for rows, columns in self.tower_linears.values())

    @property
    def projector_linear_parameters(self) -> int:
        """Weights of the linear modules of all mergers, without biases."""
        return self.mergers * sum(rows * columns for rows, columns in self.projector_linears.values())

    @property
    def patch_embedding(self) -> int:
        """Weights of the convolution that embeds a patch, without its bias."""
        return self.patch_values * self.hidden

    @property
    def tower_parameters(self) -> int:
        """All weights but the projector's: they do not change if the tower is frozen."""
        norms = 4 * self.hidden
        biases = sum(columns for _, columns in self.tower_linears.values())
        embeddings = self.patch_embedding + self.hidden + self.positions * self.hidden
        return self.tower_linear_parameters + self.depth * (norms + biases) + embeddings

    @property
    def projector_parameters(self) -> int:
        """All weights of the mergers. The last layer's normalises patches, the others' merged patches."""
        biases = self.mergers * sum(columns for _, columns in self.projector_linears.values())
        norms = 2 * self.hidden + self.deepstack * 2 * self.merged
        return self.projector_linear_parameters + biases + norms

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], int]]:
        """Yield every kind of tensor: name, shape and number. The projector's names contain "merger"."""
        for name, (columns, rows) in self.tower_linears.items():
            yield f"visual.blocks.0.{name}.weight", (rows, columns), self.depth
            yield f"visual.blocks.0.{name}.bias", (rows,), self.depth
        yield "visual.blocks.0.norm", (self.hidden,), 4 * self.depth
        yield "visual.patch_embed.weight", (self.hidden, self.patch_values), 1
        yield "visual.patch_embed.bias", (self.hidden,), 1
        yield "visual.pos_embed.weight", (self.positions, self.hidden), 1
        for name, (columns, rows) in self.projector_linears.items():
            yield f"visual.merger.{name}.weight", (rows, columns), self.mergers
            yield f"visual.merger.{name}.bias", (rows,), self.mergers
        yield "visual.merger.norm", (self.hidden,), 2
        yield "visual.deepstack_merger_list.norm", (self.merged,), 2 * self.deepstack

    @property
    def parameters(self) -> int:
        """All weights."""
        return self.tower_parameters + self.projector_parameters


def hosted_vision(out: int, *, small: bool) -> VisionShape:
    """Return the tower of a hosted base. small: of 2B and 4B; the larger ones share another."""
    depth, hidden, intermediate = (24, 1024, 4096) if small else (27, 1152, 4304)
    return VisionShape(
        depth=depth,
        hidden=hidden,
        intermediate=intermediate,
        heads=16,
        out=out,
        patch_size=16,
        temporal_patch_size=2,
        merge=2,
        positions=48**2,
        deepstack_layers=(5, 11, 17) if small else (8, 16, 24),
    )
