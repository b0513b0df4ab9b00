# SPDX-License-Identifier: Apache-2.0
"""The resources of the REST API's version 1, one module for each.

A module defines the types of its requests and responses, its handlers, and the tuple
``OPERATIONS``. Everything that resources share is one level up.
"""
