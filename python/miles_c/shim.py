"""Serves the module names of the Miles framework where that package is not installed, so that
`from miles.utils.types import Sample` finds the classes of miles_c."""

import importlib.machinery
import sys

from miles_c import types

# Module -> what is in it: names of miles_c.types, or functions of other modules of ours, which are
# imported when a name is first asked for.
MODULES = {
    "miles.utils.types": {"Sample": None},
    "miles.rollout.filter_hub.base_types": {"DynamicFilterOutput": None},
    "miles.rollout.base_types": {
        "RolloutFnTrainOutput": None,
        "RolloutFnEvalOutput": None,
        "RolloutFnConstructorInput": None,
        "RolloutFnTrainInput": None,
        "RolloutFnEvalInput": None,
        "GenerateFnInput": None,
        "GenerateFnOutput": None,
    },
    "miles.rollout.data_source": {"DataSource": None},
    "miles.utils.http_utils": {"post": "miles_c.engine"},
    "miles.backends.training_utils.loss": {
        "get_log_probs_and_entropy": "miles_c.loss",
        "get_responses": "miles_c.loss",
    },
    "miles.backends.megatron_utils.loss": {
        "get_log_probs_and_entropy": "miles_c.loss",
        "get_responses": "miles_c.loss",
    },
    "miles.utils.ppo_utils": {
        "compute_approx_kl": "miles_c.loss",
        "compute_policy_loss": "miles_c.loss",
    },
}


def packages():
    found = set()
    for name in MODULES:
        parts = name.split(".")
        for i in range(1, len(parts)):
            found.add(".".join(parts[:i]))
    return found


class Shim:
    """A finder at the end of sys.meta_path: whatever is installed comes first."""

    def __init__(self):
        self.packages = packages()

    def find_spec(self, name, path=None, target=None):
        if name in MODULES or name in self.packages:
            package = name in self.packages
            return importlib.machinery.ModuleSpec(name, self, is_package=package)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        names = MODULES.get(module.__name__)
        if names is None:
            return

        def get(name, names=names, module=module):
            if name not in names:
                raise AttributeError(
                    "miles has no %s.%s here; it serves %s"
                    % (module.__name__, name, ", ".join(sorted(names)))
                )
            home = names[name]
            if home is None:
                return getattr(types, name)
            __import__(home)
            return getattr(sys.modules[home], name)

        module.__getattr__ = get


def install():
    types.Sample.__module__ = "miles.utils.types"
    sys.meta_path.append(Shim())
