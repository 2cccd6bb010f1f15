"""What functions get and return. Names and fields are those of the Miles framework, so that code
written for it reads the same here."""

import enum
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional


@dataclass
class Sample:
    """One answer to a prompt."""

    class Status(enum.Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    group_index: Optional[int] = None
    index: Optional[int] = None
    rollout_id: Optional[int] = None
    prompt: Any = ""  # text, or a list of messages
    tokens: List[int] = field(default_factory=list)  # of prompt and response
    multimodal_inputs: Any = None
    multimodal_train_inputs: Any = None
    response: str = ""
    response_length: int = 0
    label: Any = None
    reward: Any = None  # a number, or a dict of them
    loss_mask: Optional[List[int]] = None  # of response_length
    weight_versions: List[str] = field(default_factory=list)
    rollout_log_probs: Optional[List[float]] = None
    rollout_routed_experts: Any = None
    rollout_indexer_topk: Any = None
    remove_sample: bool = False  # kept in the batch, its loss mask is zero
    teacher_log_probs: Optional[List[float]] = None
    opd_reverse_kl: Optional[List[float]] = None
    status: Status = Status.PENDING
    metadata: Dict[str, Any] = field(default_factory=dict)
    train_metadata: Any = None
    generate_function_path: Optional[str] = None
    adapter: Any = None
    reward_spec: Any = None
    routing_key: Optional[str] = None
    session_id: Optional[str] = None
    non_generation_time: float = 0.0
    spec_info: Any = None
    prefix_cache_info: Any = None

    @staticmethod
    def from_dict(data):
        sample = Sample()
        for key, value in data.items():
            setattr(sample, key, value)
        sample.status = Sample.Status(sample.status)
        return sample

    def to_dict(self):
        return dict(self.__dict__, status=self.status.value)

    def get_reward_value(self, args):
        return self.reward[args.reward_key] if args.reward_key else self.reward

    @property
    def effective_response_length(self):
        return self.response_length if self.loss_mask is None else sum(self.loss_mask)

    def append_response(self, tokens, text="", log_probs=None, trained=True):
        """Adds tokens to the response; those that the policy did not sample (trained=False) have
        mask 0 and log-prob 0."""
        tokens = list(tokens)
        if self.loss_mask is None and not (trained and self.response_length == 0):
            self.loss_mask = [1] * self.response_length
        if self.loss_mask is not None:
            self.loss_mask += [int(trained)] * len(tokens)
        elif self.response_length == 0:
            self.loss_mask = [int(trained)] * len(tokens)
        logs = list(log_probs) if log_probs is not None else [0.0] * len(tokens)
        self.rollout_log_probs = (self.rollout_log_probs or []) + logs
        self.tokens = list(self.tokens) + tokens
        self.response += text
        self.response_length += len(tokens)

    def update_from_meta_info(self, args, meta_info):
        """Status and weight version as an engine's answer tells them."""
        kind = meta_info["finish_reason"]["type"]
        self.status = {"stop": Sample.Status.COMPLETED, "length": Sample.Status.TRUNCATED,
                       "abort": Sample.Status.ABORTED}[kind]
        if "weight_version" in meta_info:
            self.weight_versions.append(meta_info["weight_version"])


@dataclass
class DynamicFilterOutput:
    """Of --dynamic-sampling-filter-path."""

    keep: bool
    reason: Optional[str] = None


@dataclass
class GenerateFnInput:
    """Of a generate function with one parameter."""

    state: Any  # .args
    sample: Sample
    sampling_params: Dict[str, Any]
    evaluation: bool = False

    @property
    def args(self):
        return self.state.args


@dataclass
class GenerateFnOutput:
    samples: Any  # a Sample or a list of them


@dataclass
class RolloutFnConstructorInput:
    args: Any
    data_source: Any


@dataclass
class RolloutFnTrainInput:
    rollout_id: int
    evaluation: bool = False


@dataclass
class RolloutFnEvalInput:
    rollout_id: int
    evaluation: bool = True


@dataclass
class RolloutFnTrainOutput:
    samples: List[List[Sample]]  # groups
    metrics: Optional[Dict[str, Any]] = None


@dataclass
class RolloutFnEvalOutput:
    data: Dict[str, Dict[str, Any]]  # of a set: "rewards", "truncated", "samples"
    metrics: Optional[Dict[str, Any]] = None


class EvalSkip(Exception):
    """Raised by an evaluation function that has nothing to tell this time; its text is the
    reason."""


class DataSource:
    """What --data-source-path may derive from. A group is a list of Samples of one prompt."""

    def __init__(self, args):
        self.args = args

    def get_samples(self, num_samples):
        raise NotImplementedError

    def add_samples(self, samples):
        raise NotImplementedError

    def save(self, rollout_id):
        pass

    def load(self, rollout_id=None):
        pass

    def get_buffer_length(self):
        return 0
