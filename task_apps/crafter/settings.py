"""The settings of a job for Crafter: the keys of `[rollout.env_config]` and of `[rollout.policy_config]`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from synth.errors import Problem, UserError
from task_apps.crafter.difficulty import Difficulty
from task_apps.crafter.rewards import StepRewards

#: Seeds from here on are kept from training: jobs evaluate on them.
HELD_OUT_FROM = 1_000_000
_SEES = ("-vl", "vision", "gpt-4o")
_PAGE = "docs/crafter.md lists the settings"
_M = TypeVar("_M", bound=BaseModel)


def _both_sides(area: Any) -> Any:
    return (area, area) if isinstance(area, int) else tuple(cast(list[Any], area)) if isinstance(area, list) else area


def _whole_squares(size: int) -> int:
    if size % 32:
        raise ValueError(f"{size} is no multiple of 32")
    return size


_Side = Annotated[int, Field(ge=16)]


class EnvSettings(BaseModel):
    """`env.config`. An unknown key is refused: it would have no effect."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    area: Annotated[tuple[_Side, _Side], BeforeValidator(_both_sides)] = Field(
        (64, 64), description="cells of the world, [width, height] or one number for both, 16 or more"
    )
    difficulty: Difficulty = Field(
        "normal", description='"normal", "easy", "medium" or "hard": of which tier the seed\'s world is'
    )
    max_steps: int = Field(
        10_000, ge=1, description="steps of the game, 1 or more, after which the episode is truncated"
    )
    max_steps_per_episode: int | None = Field(
        None, ge=1, description="turns of an episode, 1 or more, after which it is truncated"
    )
    max_actions: int = Field(5, ge=1, description="actions of a turn, 1 or more")
    # A vision model of the Qwen3-VL family sees squares of 32 x 32 pixels, and scales an image of other sizes.
    image_size: Annotated[int, Field(ge=32), AfterValidator(_whole_squares)] = Field(
        64, description="pixels of each side of a picture, a multiple of 32: a vision model sees squares of that size"
    )
    history: int | None = Field(
        None, ge=0, description="earlier turns in the conversation, 0 or more; all of them by default"
    )
    max_invalid_turns: int = Field(
        3, ge=1, description="turns in a row without a valid action, 1 or more, after which the episode is truncated"
    )
    split: Literal["train", "held_out"] | None = Field(
        None, description='"train" or "held_out": which seeds are meant, others are refused'
    )
    step_rewards: StepRewards = Field(
        default=StepRewards(), description="a table: how the answer reports each turn's reward"
    )


class PolicySettings(BaseModel):
    """The keys that this app reads of `policy.config`, which has keys for other readers too."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    model: str | None = Field(None, description="a model's name")
    use_vision: bool | None = Field(None, description="true or false: whether an observation has a picture")
    supports_vision: bool | None = Field(None, description="true or false: whether the model sees")
    image_only_mode: bool | None = Field(None, description="true or false: whether an observation is a picture alone")
    max_images_per_step: int | None = Field(None, ge=1, description="pictures of a turn, 1 or more: the latest ones")
    action_format: Literal["tool", "text"] | None = Field(None, description='"tool" or "text"')
    use_tools: bool | None = Field(None, description="true or false: whether actions are tool calls")
    tool_choice: str | dict[str, Any] | None = Field(None, description="the tool_choice of a chat completion")
    system_hint: str | None = Field(None, description="a text that is added to the system message")

    @property
    def shows_pictures(self) -> bool:
        """Whether pictures are shown: as set, else if the model is set to see, or its name shows that it does."""
        if self.use_vision is not None or self.image_only_mode:
            return self.use_vision is not False
        if self.supports_vision is not None:
            return self.supports_vision
        return any(word in (self.model or "").lower() for word in _SEES)

    @property
    def calls_tools(self) -> bool:
        if self.action_format is not None:
            return self.action_format == "tool"
        return self.use_tools is not False


def read_settings(
    env_config: dict[str, Any], policy_config: dict[str, Any], *, seed: int
) -> tuple[EnvSettings, PolicySettings]:
    """Return the settings of one rollout. Raises UserError with every problem that they have."""
    problems: list[Problem] = []
    config = {name: value for name, value in _one_name(env_config, problems).items() if name != "step_rewards"}
    config |= _step_rewards(env_config, policy_config, problems)
    env = _read(EnvSettings, config, "env.config", problems)
    policy = _read(PolicySettings, policy_config, "policy.config", problems)
    if policy is not None:
        problems += _contradictions(policy)
    if env is not None and env.split is not None and (env.split == "held_out") != (seed >= HELD_OUT_FROM):
        problems.append(
            Problem(
                where="env.config.split",
                what=f"{env.split!r}, and seed {seed} is of the other split",
                expected=f"held-out seeds from {HELD_OUT_FROM} on, training seeds below",
                fix="change split, or the seeds",
            )
        )
    if problems or env is None or policy is None:
        raise UserError(problems)
    return env, policy


def _one_name(config: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Return the config without `env_params`, which holds `max_steps_per_episode` in the published Crafter app."""
    config, name = dict(config), "max_steps_per_episode"
    params = config.pop("env_params", None) or {}
    if not isinstance(params, dict):
        return config | {"env_params": params}
    inner = cast(dict[str, Any], params)
    direct, nested = config.get(name), inner.get(name)
    if None not in (direct, nested) and direct != nested:
        both = f"{name} = {direct!r} and env_params.{name} = {nested!r}"
        problems.append(Problem(where="env.config", what=both, expected="one number of turns", fix="keep one of them"))
    config |= {f"env_params.{k}": value for k, value in inner.items() if k != name}
    return config | ({name: nested} if direct is None and nested is not None else {})


def _step_rewards(env_config: dict[str, Any], policy_config: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Return `step_rewards`, which the published Crafter app reads from either config; {} if neither has it."""
    read_tables: list[StepRewards] = []
    for where, config in (("env.config", env_config), ("policy.config", policy_config)):
        table = config.get("step_rewards")
        if table is None:
            continue
        at = f"{where}.step_rewards"
        if not isinstance(table, dict):
            expected = str(EnvSettings.model_fields["step_rewards"].description)
            problems.append(Problem(where=at, what=repr(table), expected=expected, fix=_PAGE))
            continue
        read = _read(StepRewards, cast(dict[str, Any], table), at, problems)
        if read is None:
            continue
        if read.strategy == "consistent" and (read.weights or read.k_limits):
            problems.append(
                Problem(
                    where=at,
                    what='weights or k_limits, and the strategy is "consistent", which has none',
                    expected='strategy = "per_achievement"',
                    fix="say it, or remove the two tables",
                )
            )
        read_tables.append(read)
    if len(read_tables) > 1 and read_tables[0] != read_tables[1]:
        problems.append(
            Problem(
                where="policy.config.step_rewards",
                what="another table than env.config.step_rewards",
                expected="one table",
                fix="remove one of the two",
            )
        )
    return {"step_rewards": read_tables[0]} if read_tables else {}


def _read(model: type[_M], config: dict[str, Any], where: str, problems: list[Problem]) -> _M | None:
    try:
        return model.model_validate(config)
    except ValidationError as invalid:
        for wrong in {str(e["loc"][0]): e for e in invalid.errors(include_url=False)}.values():
            name = str(wrong["loc"][0])
            if wrong["type"] == "extra_forbidden":
                what, expected = "unknown key", f"one of {', '.join(model.model_fields)}"
            else:
                what, expected = repr(config[name]), str(model.model_fields[name].description)
            problems.append(Problem(where=f"{where}.{name}", what=what, expected=expected, fix=_PAGE))
        return None


def _contradictions(policy: PolicySettings) -> list[Problem]:
    problems: list[Problem] = []
    if policy.use_vision is False and policy.image_only_mode:
        problems.append(
            Problem(
                where="policy.config.image_only_mode",
                what="true, and use_vision is false: nothing would be shown",
                expected="pictures, or text",
                fix="remove one of the two",
            )
        )
    if policy.supports_vision is False and (policy.use_vision or policy.image_only_mode):
        problems.append(
            Problem(
                where="policy.config.supports_vision",
                what="false, and pictures are requested",
                expected="a model that sees, or text alone",
                fix="remove use_vision and image_only_mode, or name a vision model",
            )
        )
    if policy.action_format == ("text" if policy.use_tools else "tool") and policy.use_tools is not None:
        problems.append(
            Problem(
                where="policy.config.action_format",
                what=f"{policy.action_format!r}, and use_tools is {str(policy.use_tools).lower()}",
                expected="one way to act",
                fix="remove one of the two",
            )
        )
    return problems
