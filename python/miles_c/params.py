"""Hooks that see the model: parameters by the names of their Hugging Face tensors, as views of
shared memory. What a hook writes into them is the model from there on, in the optimizer's f32
masters."""

from miles_c import hooks
from miles_c.memory import Memory


class Parameter:
    """One tensor; `data` (torch) and `numpy()` are views that may be written."""

    def __init__(self, memory, name, shape):
        self.memory, self.name, self.shape = memory, name, tuple(shape)

    @property
    def data(self):
        return self.memory.torch(self.name).view(self.shape)

    def numpy(self):
        return self.memory.numpy(self.name).reshape(self.shape)


class Model:
    """As much of a model as a hook needs. Miles gives a list of model chunks; this is the one
    chunk, and a list of itself."""

    def __init__(self, layout):
        memory = Memory(layout)
        self.parameters_by_name = {
            name: Parameter(memory, name, shape) for name, shape in layout["shapes"].items()
        }

    def named_parameters(self):
        return list(self.parameters_by_name.items())

    def parameters(self):
        return list(self.parameters_by_name.values())

    def __getitem__(self, key):
        return self if key == 0 else self.parameters_by_name[key]

    def __len__(self):
        return 1

    def __iter__(self):
        return iter([self])


class Fields:
    def __init__(self, values):
        self.__dict__.update(values)


class BeforeLogProb(hooks.Hook):
    n, signature = 3, "fn(args, model, store_prefix)"

    def run(self, layout, store_prefix):
        return self.fn(self.args, Model(layout), store_prefix)

    def value(self, req, value):
        return None


class BeforeStep(hooks.Hook):
    n, signature = 6, "fn(args, rollout_id, step_id, model, optimizer, opt_param_scheduler)"

    def run(self, layout, rollout_id, step_id, optimizer, scheduler):
        model = Model(layout)
        return self.fn(
            self.args, rollout_id, step_id, model, Fields(optimizer), Fields(scheduler)
        )

    def value(self, req, value):
        return hooks.numbers(value) if isinstance(value, dict) else None


TARGETS = {
    "custom-megatron-before-log-prob-hook-path": BeforeLogProb,
    "custom-megatron-before-train-step-hook-path": BeforeStep,
}
