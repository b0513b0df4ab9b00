# SPDX-License-Identifier: Apache-2.0
"""What hosts tell each other unasked: hints, of which a wrong one costs a question.

``holders`` is who told what; ``news`` is what is listened to, and what this host tells itself.
"""
