"""Data models: modules, data entry types, columns and keys, in immutable versions.

definitions.py  modules, types and columns     rules.py  validation          examples/  the CO2 model, as YAML
store.py        the rows of models and versions           yaml_file.py  read a model from a file
"""
