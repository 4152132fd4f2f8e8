"""`hpcdl burst`: burst-parallel plans (DeepPool), made, compared and drawn."""
