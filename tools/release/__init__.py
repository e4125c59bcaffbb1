"""What a release needs: pinned versions, licences, the wheel tried where users install it."""
