"""The plan classes of `OPERATIONS` at each granularity. Their types are in family.pyi, which a test compares."""

from lowbit.plans.operations import GRANULARITIES, OPERATIONS
from lowbit.plans.quantization import AffinePlan, DynamicPlan, LearnedPlan

__all__: list[str] = []

for _row in OPERATIONS:
    _base = DynamicPlan if _row.is_dynamic else LearnedPlan if _row.learns else AffinePlan
    for _scope, (_descriptor, _text) in GRANULARITIES.items():
        _name = _row.plan_name(_scope)
        globals()[_name] = type(
            _name,
            (_base,),
            {
                "__module__": "lowbit.plans",
                "__doc__": f"{_row.doc}; {_text}.",
                "__slots__": (),
                "op": _row.plan_op(_scope),
                "operation": _row,
                "Descriptor": _descriptor,
                "Args": _row.args,
            },
        )
        __all__.append(_name)
